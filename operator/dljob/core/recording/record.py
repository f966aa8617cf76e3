"""
The record of events: a header, and one line for each event, as JSON lines.

``dljob record`` writes it on one machine and on a cluster, ``dljob simulate --record`` in the simulator.
docs/record.md describes each field for users. Times are seconds: since the epoch, or since the begin of
a simulation; the header says which. GPU-seconds of a job are the sum over its :class:`Given` lines of the
number of GPUs times how long it had them.

A reader refuses a newer version, and leaves fields alone that it does not know. A change that an older
reader would misread gets a new :data:`VERSION`; a new field or a new kind of line does not need one.
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from dljob.core.model import NodeName, Placement
from dljob_wire import codec
from dljob_wire.kinds import (
    Either,
    Flag,
    Json,
    Kind,
    Many,
    Number,
    OneOf,
    Refuse,
    Said,
    Whole,
    Wrong,
    declare,
    nested,
)

FORMAT = "dljob.io/record"
VERSION = 1

_TIME = Number()
_NAME = Said(512)
_SENTENCE = Said(8192)
_MOST = 100_000
"""Maximum length of a list in a line; a longer one means that the record is damaged."""
MOST_MISSING = 100


class RecordError(Exception):
    """
    A record cannot be read: it is damaged, of a newer version, or no record at all.

    ``str()`` is one line: ``FILE, line N: field: what is wrong; remedy``.
    """


class Source(StrEnum):
    """Where the record comes from."""

    MACHINE = "machine"
    CLUSTER = "cluster"
    SIMULATION = "simulation"


class Clock(StrEnum):
    """The zero of all times."""

    EPOCH = "epoch"
    SIMULATED = "simulated"


LIVE, RESTARTED = "live", "restarted"
"""How a change of the GPUs of a training job was made: its processes stayed, or not."""


class Stage(StrEnum):
    """The stages of a change of a job's GPUs, in order."""

    ASKED = "asked"
    """It is decided. The training goes on until its processes are asked to save themselves."""
    SAVING = "saving"
    """Its processes were asked to save themselves, or to stop: from here on it does not train."""
    SAVED = "saved"
    STOPPED = "stopped"
    """None of its former processes is left, and the GPUs that it gives up are free."""
    STARTED = "started"
    """Its processes were asked to start on the GPUs that it has now."""
    PAUSED = "paused"
    """In a live change: its processes stay, and wait for those that join or leave."""
    FIRST_STEP = "firstStep"
    """It trains again."""


@dataclass(frozen=True)
class _Part:
    name: str = declare(_NAME)
    gpu_ids: tuple[int, ...] = declare(Many(Whole(), _MOST))


@dataclass(frozen=True)
class _Places:
    gpus: int = declare(Whole())
    nodes: tuple[_Part, ...] = declare(Many(nested(_Part), _MOST))
    gpu_type: str = declare(_NAME, "")


class _PlacementKind(Kind):
    """A placement, as the status of a DLJob has it."""

    def read(self, value: Any, path: str, *, refuse: Refuse) -> Placement:
        read: _Places = nested(_Places).read(value, path, refuse=refuse)
        placement = Placement.of(
            {NodeName(part.name): part.gpu_ids for part in read.nodes}, read.gpu_type
        )
        if len(set(placement.refs())) != read.gpus:
            raise Wrong(
                path, read.gpus, "is not the number of GPUs under nodes", "write each GPU once"
            )
        return placement

    def write(self, value: Placement) -> Any:
        parts = tuple(_Part(part.node, part.gpus) for part in value.slices)
        return nested(_Places).write(_Places(value.gpus, parts, value.gpu_type))

    def keywords(self) -> Json:
        return nested(_Places).keywords()


_PLACEMENT = _PlacementKind()


@dataclass(frozen=True)
class Expected:
    """The expectation of a decision for a job with its new GPUs."""

    iterations_per_second: float | None = declare(Number(), None)
    """``None`` if unknown."""
    confidence: float = declare(Number(0.0, 1.0), 0.0)
    """How far that speed can be trusted, from 0 to 1."""
    remaining_seconds: float | None = declare(Number(), None)
    """Until the job has ended; ``None``: not known."""
    pause_seconds: float = declare(Number(), 0.0)
    """For how long the change keeps the job from training."""


EXPECTED = nested(Expected)


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """The first line."""

    format: str = declare(_NAME, FORMAT)
    version: int = declare(Whole(1), VERSION)
    source: Source = declare(OneOf(Source))
    clock: Clock = declare(OneOf(Clock), Clock.EPOCH)
    since: float = declare(_TIME, 0.0)
    """Lines before that time describe only the state at that time."""
    until: float = declare(_TIME, 0.0)
    """The last line of a job holds until then."""
    policy: str = declare(_NAME, "")
    title: str = declare(_SENTENCE, "")
    """Name of the machine, cluster or trace."""
    missing: tuple[str, ...] = declare(Many(_SENTENCE, MOST_MISSING), ())
    """Gaps of the source, as sentences; empty: nothing is known to be missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """A GPU goes into service, or out of it."""

    at: float = declare(_TIME)
    node: str = declare(_NAME)
    gpu: int = declare(Whole())
    """Its number on the node."""
    gpu_type: str = declare(_NAME, "")
    uuid: str = declare(_NAME, "")
    in_service: bool = declare(Flag(), default=True)
    reason: str = declare(_SENTENCE, "")
    """Why it is out of service."""
    held: bool = declare(Flag(), default=False)
    """A job that the reader may not see has it; not out of service, and no job of this record gets it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Submitted:
    """A job was submitted."""

    at: float = declare(_TIME)
    job: str = declare(_NAME)
    options: tuple[int, ...] = declare(Many(Whole(1), _MOST), ())
    """The numbers of GPUs that it can run on."""
    requested: int = declare(Whole(), 0)
    priority: int = declare(Whole(-(10**9), 10**9), 0)
    model: str = declare(_NAME, "")
    user: str = declare(_NAME, "")
    """The value of the label ``dljob.io/user``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decided:
    """The scheduler decided about a job."""

    at: float = declare(_TIME)
    job: str = declare(_NAME)
    step: str = declare(_NAME)
    """``start``, ``reshape``, ``move``, ``stop``, ``wait`` or ``restart``."""
    generation: int = declare(Whole(), 0)
    """Counts the decisions about a job."""
    cause: str = declare(_NAME, "")
    for_job: str | None = declare(_NAME, None)
    """The other job that the reason names: for which this one makes room, or which is ahead."""
    sentence: str = declare(_SENTENCE, "")
    old: Placement | None = declare(_PLACEMENT, None)
    new: Placement | None = declare(_PLACEMENT, None)
    expected: Expected | None = declare(EXPECTED, None)
    cost_seconds: float | None = declare(Number(), None)
    """For how long the job then did not train because of it; ``None``: not known, or not yet."""
    how: str = declare(_NAME, "")
    """``live`` if processes stayed, or ``restarted``; empty: not known, not yet, or no change of a job that trained."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """A job has these GPUs until its next line of this kind or its end."""

    at: float = declare(_TIME)
    job: str = declare(_NAME)
    generation: int = declare(Whole(), 0)
    placement: Placement | None = declare(_PLACEMENT, None)
    gpu_seconds: float = declare(Number(), 0.0)
    """GPU-seconds that the job had used by then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """A change of a job's GPUs reached a stage."""

    at: float = declare(_TIME)
    job: str = declare(_NAME)
    phase: Stage = declare(OneOf(Stage))
    generation: int = declare(Whole(), 0)
    """Of the decision that asked for the change."""
    node: str = declare(_NAME, "")
    """Where a job has several nodes, each of them reaches a phase; empty: all of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a job is, and how fast it trains from now on."""

    at: float = declare(_TIME)
    job: str = declare(_NAME)
    iteration: float = declare(Number(), 0.0)
    iterations_total: float | None = declare(Number(), None)
    iterations_per_second: float = declare(Number(), 0.0)
    metric: float | None = declare(Number(-1e300), None)
    lost_seconds: float = declare(Number(), 0.0)
    """How long the iterations took that the job has repeated by then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Happened:
    """Something else that happened to a job, such as a crash or a lost node."""

    at: float = declare(_TIME)
    job: str = declare(_NAME)
    name: str = declare(_NAME)
    message: str = declare(_SENTENCE, "")
    warning: bool = declare(Flag(), default=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """A job is over; it has no GPUs any more."""

    at: float = declare(_TIME)
    job: str = declare(_NAME)
    outcome: str = declare(_NAME)
    """``Completed``, ``Failed`` or ``Removed``."""
    gpu_seconds: float = declare(Number(), 0.0)
    reshapes: int = declare(Whole(), 0)
    message: str = declare(_SENTENCE, "")
    lost_seconds: float = declare(Number(), 0.0)
    """How long the iterations took that the job has repeated."""


Line = Gpu | Submitted | Decided | Given | Phase | Progress | Happened | Ended

LINES = (Gpu, Submitted, Decided, Given, Phase, Progress, Happened, Ended)
"""In the order in which those of one instant are written: a job is submitted before it is decided about."""

_LINE = Either(*LINES)
_RANKS = {kind: rank for rank, kind in enumerate(LINES)}


@dataclass(frozen=True, slots=True)
class Record:
    """A complete record with its lines in order of time."""

    header: Header
    lines: tuple[Line, ...] = ()

    @classmethod
    def of(cls, header: Header, lines: Iterable[Line]) -> "Record":
        """Put lines into their order."""
        return cls(header, tuple(sorted(lines, key=lambda line: (line.at, _RANKS[type(line)]))))

    @property
    def begin(self) -> float:
        """``since``, or the time of the first line where the header has no ``since``."""
        return self.header.since or min((line.at for line in self.lines), default=0.0)


def encode_line(line: Line) -> str:
    """Write one line."""
    return json.dumps(_LINE.write(line), allow_nan=False, separators=(",", ":"))


def decode_line(text: str) -> Line:
    """Read what :func:`encode_line` wrote; raises :class:`~dljob_wire.kinds.Wrong`."""
    line: Line = _LINE.parse(codec.parse(text.encode()))
    return line


def encode(record: Record) -> Iterator[str]:
    """Yield the lines of a file, each with its end."""
    header = nested(Header).write(record.header)
    yield json.dumps(header, allow_nan=False, separators=(",", ":")) + "\n"
    for line in record.lines:
        yield encode_line(line) + "\n"


def decode(lines: Iterable[str], name: str) -> Record:
    """Read a record; ``name`` is how an error calls the file. Raises :class:`RecordError`."""
    given = iter(lines)
    header = _read_header(next(given, ""), name)
    return Record.of(header, _read_lines(given, name))


def _read_header(text: str, name: str) -> Header:
    foreign = RecordError(
        f"{name}, line 1: this is not a record of DLJob; give a file that dljob record has written"
    )
    try:
        document = codec.parse(text.encode())
    except Wrong as wrong:
        raise foreign from wrong
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise foreign
    # Check the version first: a newer header may be invalid under this version's rules.
    version = document.get("version")
    if isinstance(version, int) and version > VERSION:
        raise RecordError(
            f"{name}, line 1: version: the record has version {version}, and this dljob reads none"
            f" above {VERSION}; upgrade dljob"
        )
    try:
        header: Header = nested(Header).parse(document)
    except Wrong as wrong:
        raise RecordError(f"{name}, line 1: {wrong}") from wrong
    return header


def _read_lines(lines: Iterator[str], name: str) -> Iterator[Line]:
    for number, text in enumerate(lines, start=2):
        if not text.endswith("\n"):
            raise RecordError(
                f"{name}, line {number}: the line has no end, so that the file was cut off;"
                " write the record again"
            )
        try:
            yield decode_line(text)
        except Wrong as wrong:
            raise RecordError(f"{name}, line {number}: {wrong}") from wrong
