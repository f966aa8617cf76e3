"""
Traces as they lie on disk: which format a file has, and what its rows say.

Called by :func:`dljob.sim.jobs.workloads.read`, which makes jobs of the rows. A format is recognised by
its header. Every fault of a file ends as one :class:`~dljob.sim.errors.BadInput` that names line and
column: a row is never skipped or mended, because the figures would be those of another trace.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple

from dljob.sim.errors import BadInput
from dljob.sim.inputs.tables import Row, Table, read_lines
from dljob.sim.jobs.checkpointing import KINDS
from dljob.sim.jobs.checkpointing import Kind as Saves


class Kind(Enum):
    """The information of a trace about its jobs, in addition to their submission times and requested GPUs."""

    DURATIONS = "for how long they ran (Philly, ITP)"
    ITERATIONS = "duration, model and iterations (Tiresias)"
    MODELS = "model, global batch size and iterations (ElasticFlow's ITP)"
    GAVEL = "model with its batch size a GPU, and the steps of all GPUs (Gavel)"
    POLLUX = "application and global batch size (Pollux)"
    RUBICK = "model, iterations, and whether it is guaranteed its speed (Rubick)"
    SHOCKWAVE = "model with its batch size a GPU, and how that adapts (Shockwave)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A job of a trace. Fields that its format lacks keep their defaults."""

    row: Row
    """Where it was read, for errors that come up later."""
    id: str
    submitted_at: float
    gpus: int
    duration: float = 0.0
    iterations: float = 0.0
    model: str = ""
    batch_size: int = 0
    checkpoint: Saves = Saves.GOOD
    """The kind of its checkpoint, if its file has that column."""
    is_live: bool = False
    """True if its processes stay when its GPUs change, if its file has that column."""
    guaranteed: bool = False
    """True if it must never be slower than on the GPUs that it asks for."""
    adaptation: str = ""
    """How it changes its batch size while it trains."""


@dataclass(frozen=True, slots=True)
class Trace:
    """The jobs of a file by submission; ties keep the order of the file."""

    kind: Kind
    requests: tuple[Request, ...]


class Format(NamedTuple):
    """A kind of trace, and from which column a field of :class:`Request` is read."""

    kind: Kind
    columns: Mapping[str, str]

    @property
    def names(self) -> tuple[str, ...]:
        """The columns that a file must have; others are not looked at."""
        return tuple(self.columns.values())


FIELDS: Mapping[str, Callable[[Row, str], Any]] = {
    "id": Row.name,
    "submitted_at": Row.seconds,
    "gpus": lambda row, column: row.whole(column, least=1),
    "duration": Row.seconds,
    "iterations": Row.positive,
    "model": Row.name,
    "batch_size": lambda row, column: row.whole(column, least=1),
    "guaranteed": Row.flag,
    "adaptation": Row.name,
}

CHECKPOINT, LIVE = "checkpoint", "live"
"""Columns that any trace may have."""

_PLAIN = {
    "id": "job_id",
    "submitted_at": "submit_time_s",
    "duration": "duration_s",
    "gpus": "num_gpus",
}
FORMATS = (
    Format(Kind.DURATIONS, _PLAIN),
    Format(Kind.ITERATIONS, _PLAIN | {"model": "model", "iterations": "iterations"}),
    Format(
        Kind.MODELS,
        _PLAIN | {"model": "model", "batch_size": "global_batch_size", "iterations": "iterations"},
    ),
    Format(
        Kind.GAVEL,
        {
            "id": "job_id",
            "submitted_at": "submit_time_s",
            "model": "job_type",
            "gpus": "num_gpus",
            "iterations": "total_steps",
        },
    ),
    Format(
        Kind.POLLUX,
        {
            "id": "name",
            "submitted_at": "time",
            "model": "application",
            "gpus": "num_replicas",
            "batch_size": "batch_size",
        },
    ),
    Format(
        Kind.RUBICK,
        _PLAIN | {"model": "model", "iterations": "iterations", "guaranteed": "is_guaranteed"},
    ),
    Format(
        Kind.SHOCKWAVE,
        _PLAIN
        | {"model": "job_type", "iterations": "total_steps", "adaptation": "adaptation_mode"},
    ),
)


def read_trace(path: Path) -> Trace:
    """Read a CSV file, plain or gzipped."""
    lines = read_lines(path)
    format_ = recognise(path, lines[0]) if lines else FORMATS[0]
    table = Table.of(path, lines, required=format_.names, optional=(CHECKPOINT, LIVE))
    requests: dict[str, Request] = {}
    for row in table:
        values = {field: FIELDS[field](row, name) for field, name in format_.columns.items()}
        is_live = bool(row.text(LIVE)) and row.flag(LIVE)
        request = Request(row=row, checkpoint=_read_checkpoint(row), is_live=is_live, **values)
        twin = requests.setdefault(request.id, request)
        if twin is not request:
            raise row.error(
                f"{request.id!r} is the job of line {twin.row.line} already",
                field=format_.columns["id"],
                remedy="give every job a name of its own",
            )
    # Sorting is stable: jobs of one instant keep the order of the file.
    ordered = sorted(requests.values(), key=lambda request: request.submitted_at)
    return Trace(format_.kind, tuple(ordered))


def _read_checkpoint(row: Row) -> Saves:
    kind = row.text(CHECKPOINT) or Saves.GOOD.value
    if kind not in KINDS:
        remedy = f"write one of {', '.join(KINDS)}, or nothing for the first"
        raise row.error(f"{kind!r} is no kind of checkpoint", field=CHECKPOINT, remedy=remedy)
    return Saves(kind)


def recognise(path: Path, header: tuple[int, Sequence[str]]) -> Format:
    """
    Find the format that the header fits best.

    A header that has more than a format needs, and less than a larger one, is taken for the larger
    one with something missing: a model without a number of iterations is useless, and its author
    should see an error.
    """
    line, names = header
    present = set(names)

    def fit(format_: Format) -> tuple[int, int]:
        known = set(format_.names)
        return len(known & present), -len(known - present)

    nearest = max(FORMATS, key=fit)
    if fit(nearest)[0] == 0:
        known = " | ".join(",".join(each.names) for each in FORMATS)
        raise BadInput(
            path, "is not the header of a trace", line=line, remedy=f"begin with one of {known}"
        )
    return nearest
