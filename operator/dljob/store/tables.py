"""
The tables of a store: GPUs and jobs (Tables II and III of the SideCar paper).

The tables of GPUs and jobs show the latest scene of the loop to people and programs; the platform remains the truth.

:func:`to_record` turns rows into JSON, and :func:`read_rows` reads them back.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any, TypeVar

from dljob.core.model import JobId, NodeName, Phase, Placement
from dljob.core.profiles import JobType
from dljob.store.rows import shorten

log = logging.getLogger(__name__)

Record = dict[str, Any]
Key = tuple[str | int, ...]
"""The unique key of a row in its table."""


class GpuState(StrEnum):
    """The state of a GPU: those of the paper, and UNAVAILABLE."""

    FREE = "free"
    RESERVED = "reserved"
    """Decided for a job that does not use the GPU yet."""
    IN_USE = "in use"
    UNAVAILABLE = "unavailable"


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuRow:
    """A GPU and its job (Table II)."""

    node: NodeName
    gpu: int
    """Its number on the node, in PCI bus order."""
    uuid: str = ""
    gpu_type: str = ""
    state: GpuState = GpuState.FREE
    job: JobId | None = None
    worker: int | None = None
    """The rank of the process that uses it."""
    since: float | None = None
    """When the state began, in seconds since the epoch."""
    reason: str = ""
    """Why the GPU is unavailable."""

    @property
    def key(self) -> Key:
        return self.node, self.gpu


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRow:
    """A job with its GPUs and progress (Table III)."""

    job: JobId
    phase: Phase = Phase.SUBMITTED
    gpus: int = 0
    placement: Placement | None = None
    type: JobType = JobType("")
    options: tuple[int, ...] = ()
    """The numbers of GPUs that the job can run on."""
    priority: int = 0
    submitted_at: float | None = None
    started_at: float | None = None
    finished_at: float | None = None
    generation: int = 0
    iteration: float = 0.0
    iterations_total: float | None = None
    iterations_per_second: float = 0.0
    eta_seconds: float | None = None
    reshapes: int = 0
    reason: str = ""
    """The present activity of the job and the reason, for people."""

    @property
    def key(self) -> Key:
        return (self.job,)


Row = GpuRow | JobRow
R = TypeVar("R", GpuRow, JobRow)


V = TypeVar("V")
S = TypeVar("S")
"""A record in the form of a store."""


def differences(old: Mapping[Key, V], new: Mapping[Key, V]) -> tuple[list[V], list[Key]]:
    """Return the rows to write and the keys to remove to change a table from old to new."""
    written = [row for key, row in new.items() if old.get(key) != row]
    return written, [key for key in old if key not in new]


# --- as records ---------------------------------------------------------------------------


def to_record(row: Row) -> Record:
    """Return the fields of a row as JSON."""
    return {each.name: _plain(getattr(row, each.name)) for each in fields(row)}


def _plain(value: Any) -> Any:
    if isinstance(value, Placement):
        return placement_document(value)
    if isinstance(value, JobType):
        return {"model": value.model, "dataset": value.dataset, "batchSize": value.batch_size}
    if isinstance(value, StrEnum):
        return value.value
    if isinstance(value, str):
        return shorten(value)
    return list(value) if isinstance(value, tuple) else value


def read_rows(
    kind: type[R], kept: Iterable[S], *, as_record: Callable[[S], Record], address: str
) -> Iterator[R]:
    """Make rows of records, without the fields of newer versions; unreadable ones are logged and left out."""
    names = [each.name for each in fields(kind)]
    for each in kept:
        try:
            record = as_record(each)
            given = {name: _read(name, record[name]) for name in names if name in record}
            yield kind(**given)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            log.warning("%s: a %s cannot be read: %r", address, kind.__name__, error)


def _read(name: str, value: Any) -> Any:
    if name == "placement":
        return None if value is None else read_placement(value)
    if name == "type":
        return JobType(value["model"], value.get("dataset", ""), value.get("batchSize", 0))
    if name == "options":
        return tuple(value)
    if name == "phase":
        return Phase(value)
    return GpuState(value) if name == "state" else value


def placement_document(placement: Placement) -> Record:
    """Write a placement as in the status of a DLJob."""
    nodes = [{"name": part.node, "gpuIds": list(part.gpus)} for part in placement.slices]
    kind = {"gpuType": placement.gpu_type} if placement.gpu_type else {}
    return {"gpus": placement.gpus, **kind, "nodes": nodes}


def read_placement(document: Mapping[str, Any]) -> Placement:
    """Read what :func:`placement_document` wrote."""
    nodes = {NodeName(node["name"]): node["gpuIds"] for node in document["nodes"]}
    return Placement.of(nodes, document.get("gpuType", ""))
