"""
The record of a cluster, from the objects of its API server: DLJobs with their status, Events, nodes.

The status of a job has its latest decisions, so that the GPUs of a job are known from its first decision
on as long as there were no more. The operator's store has the rest: phases of changes, GPUs that were out
of service, jobs that are gone.

Pure.
"""

from collections.abc import Iterable, Iterator, Mapping

from dljob.client.backend import Json
from dljob.client.cluster.reading.past import list_events, list_history
from dljob.client.jobviews import FINAL, read_time
from dljob.core.documents.jobnames import full_name
from dljob.core.documents.jobschema import USER_LABEL
from dljob.core.recording.record import (
    Decided,
    Ended,
    Given,
    Gpu,
    Happened,
    Header,
    Line,
    Progress,
    Record,
    Submitted,
)
from dljob.core.recording.sums import cut
from dljob.store.tables import read_placement

STEPS = frozenset({"start", "reshape", "move", "stop", "wait", "restart"})
LACKS = (
    "the API server has neither the phases of changes, nor the times when GPUs were out of"
    " service, nor jobs that are gone"
)
UNTOLD = f"{LACKS}; --store reads all of it from the operator's store"


def compose(
    jobs: Iterable[Json], events: Mapping[str, list[Json]], *, nodes: Iterable[Json], header: Header
) -> Record:
    """Compose the record; ``events`` has the documents of each job's events."""
    lines: list[Line] = []
    missing = [*header.missing, UNTOLD]
    for job in jobs:
        name = full_name(job, "")
        lines += _of_job(job, name, events=events.get(name, []), until=header.until)
        if _is_cut(job):
            missing.append(f"of {name} only the latest decisions are known")
    first = min((line.at for line in lines), default=header.since)
    lines += _of_gpus(nodes, max(first, header.since))
    header = Header(
        source=header.source,
        since=header.since,
        until=header.until,
        policy=header.policy,
        title=header.title,
        missing=tuple(missing[:100]),
    )
    return Record.of(header, cut(Record.of(header, lines).lines, header.since))


def events_by_job(jobs: Iterable[Json], found: Iterable[Json]) -> Mapping[str, list[Json]]:
    """Group Events by job, without those of jobs that no longer exist."""
    names = {job["metadata"].get("uid", ""): full_name(job, "") for job in jobs}
    sorted_events: dict[str, list[Json]] = {}
    for event in found:
        name = names.get(event["involvedObject"].get("uid", ""))
        if name is not None:
            sorted_events.setdefault(name, []).append(event)
    return {name: list_events(each, name) for name, each in sorted_events.items()}


def _is_cut(job: Json) -> bool:
    history = job.get("status", {}).get("history", ())
    decided = [entry for entry in history if entry["kind"] != "wait" and entry["kind"] in STEPS]
    return bool(decided) and decided[0].get("generation", 1) > 1


def _of_job(job: Json, name: str, *, events: list[Json], until: float) -> Iterator[Line]:
    status, spec = job.get("status", {}), job.get("spec", {})
    options = spec.get("gpus", {}).get("options", ())
    yield Submitted(
        at=read_time(status.get("submittedAt") or job["metadata"].get("creationTimestamp")) or 0.0,
        job=name,
        options=tuple(options),
        requested=spec.get("gpus", {}).get("requested", 0),
        priority=spec.get("priority", 0),
        model=spec.get("profile", {}).get("model", ""),
        user=job["metadata"].get("labels", {}).get(USER_LABEL, ""),
    )
    for entry in list_history(status, events, job=name):
        yield from _of_entry(entry, name)
    progress = status.get("progress", {})
    if progress:
        yield Progress(
            at=read_time(progress.get("iteratedAt")) or until,
            job=name,
            iteration=float(progress.get("iteration", 0)),
            iterations_total=progress.get("iterationsTotal"),
            iterations_per_second=progress.get("iterationsPerSecond", 0.0),
        )
    if status.get("phase") in FINAL:
        yield Ended(
            at=read_time(status.get("finishedAt")) or until,
            job=name,
            outcome=status["phase"],
            gpu_seconds=progress.get("gpuSeconds", 0.0),
            reshapes=status.get("reshapes", 0),
            message=status.get("message", ""),
        )


def _of_entry(entry: Json, name: str) -> Iterator[Line]:
    at, kind, message = read_time(entry["at"]) or 0.0, entry["kind"], entry.get("message", "")
    if kind not in STEPS:
        yield Happened(at=at, job=name, name=kind[:1].upper() + kind[1:], message=message)
        return
    # The status may have only a number.
    sides = [entry.get("old"), entry.get("new")]
    old, new = (read_placement(each) if each and each.get("nodes") else None for each in sides)
    generation = entry.get("generation", 0)
    yield Decided(
        at=at,
        job=name,
        step=kind,
        generation=generation,
        cause=entry.get("cause", ""),
        sentence=message,
        old=old,
        new=new,
        cost_seconds=entry.get("costSeconds"),
        how=entry.get("how", ""),
    )
    # The history of a status has every decision about GPUs, so Given lines follow from it.
    if kind != "wait" and generation:
        yield Given(at=at, job=name, generation=generation, placement=new)


def _of_gpus(nodes: Iterable[Json], at: float) -> Iterator[Line]:
    for node in nodes:
        for gpu in node["gpus"]:
            reason = gpu.get("reason", "") if gpu["state"] != "unknown" else ""
            yield Gpu(
                at=at,
                node=node["name"],
                gpu=gpu["index"],
                gpu_type=node.get("gpuType", ""),
                uuid=gpu.get("uuid", ""),
                in_service=not reason,
                reason=reason,
            )
