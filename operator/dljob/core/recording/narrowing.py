"""
A record narrowed to the jobs that a user may see: of other jobs it has only the times in which they hold each GPU.

All other jobs are one: a line says that a GPU is held, and no line says that one job gave it to another.
Used by the page of a cluster and by a ``dljob up`` that several users share.

Pure.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Final, NamedTuple

from dljob.core.model import GpuRef, NodeName
from dljob.core.recording.record import MOST_MISSING, Gpu, Record
from dljob.core.recording.sums import Span, list_spans
from dljob.core.recording.usage import Interval, merge

WITHHELD: Final = "the reason is not shown, because it may name jobs that you may not see"
"""The reason of every outage: the true one may name the job that does not release the GPU."""


def list_jobs(record: Record) -> frozenset[str]:
    return frozenset(line.job for line in record.lines if not isinstance(line, Gpu))


def narrow(record: Record, hidden: Collection[str], *, lack: str) -> Record:
    """Leave out the lines of hidden jobs; ``lack`` is the sentence about it for readers."""
    jobs = [line for line in record.lines if not isinstance(line, Gpu) and line.job not in hidden]
    # A sentence about a gap may be about one job, and then it names that job.
    kept = [each for each in record.header.missing if not any(job in each for job in hidden)]
    header = replace(record.header, missing=(*kept[: MOST_MISSING - 1], lack))
    spans = [span for span in list_spans(record) if span.job in hidden]
    blocks = list_held(spans)
    # Without a visible job the record of an API server begins with the first job that waits.
    begins = [line.at for line in jobs] + [found[0][0] for found in blocks.values()]
    first = min(begins, default=header.until)
    types = {ref: span.placement.gpu_type for span in spans for ref in span.placement.refs()}
    gpus = _list_gpus(record, blocks, first=first, types=types)
    return Record.of(header, [*gpus, *jobs])


def list_held(spans: Iterable[Span]) -> dict[GpuRef, list[Interval]]:
    """List when each GPU is held, without the moments at which one span follows on another."""
    held: dict[GpuRef, list[tuple[float, float]]] = {}
    for span in spans:
        for ref in span.placement.refs():
            held.setdefault(ref, []).append((span.begin, span.end))
    return {ref: list(merge(intervals)) for ref, intervals in held.items()}


class _Change(NamedTuple):
    """From this moment on the GPU is in service or not, or held by a hidden job or not."""

    at: float
    is_held: bool | None = None
    is_in_service: bool | None = None


def _list_gpus(
    record: Record,
    blocks: Mapping[GpuRef, Sequence[Interval]],
    *,
    first: float,
    types: dict[GpuRef, str],
) -> Iterator[Gpu]:
    """Yield a line for each change of a GPU that readers may see."""
    changes: dict[GpuRef, list[_Change]] = {}
    for line in record.lines:
        if isinstance(line, Gpu):
            ref = GpuRef(NodeName(line.node), line.gpu)
            types[ref] = line.gpu_type or types.get(ref, "")
            change = _Change(max(line.at, first), is_in_service=line.in_service)
            changes.setdefault(ref, []).append(change)
    for ref, intervals in blocks.items():
        for begin, end in intervals:
            changes.setdefault(ref, []).append(_Change(begin, is_held=True))
            if end < record.header.until:
                changes[ref].append(_Change(end, is_held=False))
    for ref, found in changes.items():
        for line in _show_changes(ref, sorted(found, key=lambda change: change.at)):
            yield replace(line, gpu_type=types[ref])


def _show_changes(ref: GpuRef, changes: Iterable[_Change]) -> Iterator[Gpu]:
    """Yield the lines of one GPU; a line does not say whether a held GPU is in service."""
    former: tuple[bool, bool] | None = None
    is_held, is_in_service = False, True
    for at, together in groupby(changes, key=lambda change: change.at):
        for change in together:
            is_held = is_held if change.is_held is None else change.is_held
            if change.is_in_service is not None:
                is_in_service = change.is_in_service
        is_free = is_in_service and not is_held
        if (is_held, is_free) != former:
            former = (is_held, is_free)
            reason = "" if is_free or is_held else WITHHELD
            yield Gpu(
                at=at,
                node=ref.node,
                gpu=ref.number,
                in_service=is_free,
                reason=reason,
                held=is_held,
            )
