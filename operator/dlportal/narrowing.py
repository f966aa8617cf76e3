"""
A record and lists, narrowed to what a user may see.

A GPU that no visible job has is shown neither as free nor as held: its job may not be seen.

Pure.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final

from dlclient.cluster.reading.gpus import HIDDEN, UNKNOWN
from dlcore.documents.jobnames import full_name
from dlcore.model import GpuRef, NodeName
from dlcore.recording.record import Gpu, Line, Record
from dlcore.recording.sums import list_spans
from dlkube.documents import JsonObject
from dlportal.rights import Rights

SHOWN: Final = ("index", "state", "job", "worker", "since")
"""Fields of a visible job's GPU. The reason why it is out of service may name other jobs, and is not part of its job."""

PARTLY: Final = (
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
        # Also where it is out of service: a GPU that a hidden job has is not shown so, and would differ from a free one.
        yield {"index": gpu["index"], "state": UNKNOWN, "reason": HIDDEN}


def narrow_record(record: Record, rights: Rights) -> Record:
    """Leave out lines about other jobs; GPUs are in service while a visible job has them."""
    if rights.has_all:
        return record
    of_jobs = [line for line in record.lines if not isinstance(line, Gpu)]
    jobs = [line for line in of_jobs if rights.shows(line.job)]
    hidden = {line.job for line in of_jobs if not rights.shows(line.job)}
    # A sentence about a gap may be about one job, and then it names that job.
    told = [each for each in record.header.missing if not any(job in each for job in hidden)]
    header = replace(record.header, missing=(*told, PARTLY))
    narrowed = Record.of(header, jobs)
    gpus = [line for line in record.lines if isinstance(line, Gpu)] if rights.nodes else []
    first = min((line.at for line in jobs), default=header.until)
    return Record.of(header, [*_hide(gpus, first), *_show_held(narrowed), *jobs])


def _hide(lines: Iterable[Gpu], first: float) -> Iterator[Gpu]:
    """Yield a line for each GPU from its first appearance, but not before the ``first`` line of a visible job."""
    known: set[GpuRef] = set()
    for line in lines:
        ref = GpuRef(NodeName(line.node), line.gpu)
        if ref not in known:
            known.add(ref)
            # The record of an API server begins with its first job, which may be a hidden one.
            at = max(line.at, first)
            yield replace(line, at=at, in_service=False, reason=HIDDEN, uuid="")


def _show_held(record: Record) -> Iterator[Line]:
    """Yield when visible jobs have GPUs."""
    held: dict[GpuRef, list[tuple[float, float]]] = {}
    types: dict[GpuRef, str] = {}
    for span in list_spans(record):
        for ref in span.placement.refs():
            held.setdefault(ref, []).append((span.begin, span.end))
            types[ref] = span.placement.gpu_type
    for ref, intervals in held.items():
        for begin, end in _join(intervals):
            line = Gpu(at=begin, node=ref.node, gpu=ref.number, gpu_type=types[ref])
            yield line
            if end < record.header.until:
                yield replace(line, at=end, in_service=False, reason=HIDDEN)


def _join(intervals: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Make one interval of those that touch."""
    joined: list[tuple[float, float]] = []
    for begin, end in sorted(intervals):
        if joined and begin <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(joined[-1][1], end))
        else:
            joined.append((begin, end))
    return joined
