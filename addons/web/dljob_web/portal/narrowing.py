"""
A record and lists, narrowed to what a user may see.

With the right to list nodes, other jobs are anonymous blocks: their GPUs are held, by one "another job" for all of
them. Without it, a GPU is shown while a visible job has it.

Pure.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Final

from dljob.client.cluster.reading.gpus import HIDDEN
from dljob.core.documents.jobnames import full_name
from dljob.core.recording.narrowing import WITHHELD, list_held, list_jobs, narrow
from dljob.core.recording.record import Gpu, Line, Record
from dljob.core.recording.sums import list_spans
from dljob.kube.documents import JsonObject
from dljob_web.portal.rights import Rights

SHOWN: Final = ("index", "state", "job", "worker", "since")
"""Fields of a visible job's GPU. The reason why it is out of service may name other jobs, and is not part of its job."""

HELD: Final = "held"
"""The state of a GPU that a hidden job has, also while it is reserved for that job or out of service."""

PARTLY: Final = (
    "you see the jobs of namespaces in which you may list DLJobs, and of all others only the GPUs"
    " that they hold; a GPU is also idle while only jobs wait that you may not see"
)

THEIRS: Final = (
    "you see the jobs of namespaces in which you may list DLJobs; a GPU that none of them has"
    " is shown as out of service, because it is free or held by a job that you may not see"
)


def narrow_jobs(jobs: Iterable[JsonObject], rights: Rights) -> list[JsonObject]:
    """Leave out the jobs of other namespaces."""
    return [job for job in jobs if rights.shows(full_name(job))]


def narrow_nodes(nodes: Iterable[JsonObject], rights: Rights) -> list[JsonObject]:
    """Leave out other jobs; without the right to list nodes, also the GPUs that no visible job has."""
    if rights.has_all:
        return list(nodes)
    narrowed = (
        {**node, "gpus": [shown for gpu in node["gpus"] for shown in _narrow_gpu(gpu, rights)]}
        for node in nodes
    )
    return [node for node in narrowed if node["gpus"]]


def _narrow_gpu(gpu: JsonObject, rights: Rights) -> Iterator[JsonObject]:
    job = gpu.get("job")
    if job is not None and rights.shows(job):
        yield {name: gpu[name] for name in SHOWN if name in gpu}
    elif rights.nodes:
        # Not since when, because the time of the hidden job's latest change counts its changes.
        state = gpu["state"] if job is None else HELD
        reason = {"reason": WITHHELD} if state == "unavailable" else {}
        yield {"index": gpu["index"], "state": state, **reason}


def narrow_record(record: Record, rights: Rights) -> Record:
    """Leave out lines about other jobs; without the right to list nodes, also GPUs while no visible job has them."""
    if rights.has_all:
        return record
    hidden = frozenset(job for job in list_jobs(record) if not rights.shows(job))
    if rights.nodes:
        return narrow(record, hidden, lack=PARTLY)
    narrowed = narrow(record, hidden, lack=THEIRS)
    jobs = [line for line in narrowed.lines if not isinstance(line, Gpu)]
    return Record.of(narrowed.header, [*_show_held(narrowed), *jobs])


def _show_held(record: Record) -> Iterator[Line]:
    """Yield when visible jobs have GPUs."""
    spans = list_spans(record)
    types = {ref: span.placement.gpu_type for span in spans for ref in span.placement.refs()}
    for ref, intervals in list_held(spans).items():
        for begin, end in intervals:
            line = Gpu(at=begin, node=ref.node, gpu=ref.number, gpu_type=types[ref])
            yield line
            if end < record.header.until:
                yield replace(line, at=end, in_service=False, reason=HIDDEN)
