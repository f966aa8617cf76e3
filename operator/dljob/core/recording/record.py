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
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from dljob.core.model import NodeName, Placement
from dljob_wire import codec, kinds
from dljob_wire.kinds import (
    Each,
    Either,
    Flag,
    Maybe,
    Nested,
    Number,
    OneOf,
    Text,
    Whole,
    Wrong,
    wire,
)

FORMAT = "dljob.io/record"
VERSION = 1

_TIME = Number()
_NAME = Text(512)
_SENTENCE = Text(8192)
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
    FIRST_STEP = "firstStep"
    """It trains again."""


@dataclass(frozen=True)
class _Part:
    name: str = field(metadata=wire(_NAME))
    gpu_ids: tuple[int, ...] = field(metadata=wire(Each(Whole(), _MOST)))


@dataclass(frozen=True)
class _Places:
    gpus: int = field(metadata=wire(Whole()))
    nodes: tuple[_Part, ...] = field(metadata=wire(Each(Nested(_Part), _MOST)))
    gpu_type: str = field(default="", metadata=wire(_NAME))


class _PlacementKind(kinds.Kind):
    """A placement, as the status of a DLJob has it."""

    def read(self, value: Any, path: str) -> Placement:
        read: _Places = Nested(_Places).read(value, path)
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
        return Nested(_Places).write(_Places(value.gpus, parts, value.gpu_type))

    def schema(self) -> dict[str, Any]:
        return Nested(_Places).described()


_PLACEMENT = Maybe(_PlacementKind())


@dataclass(frozen=True)
class Expected:
    """The expectation of a decision for a job with its new GPUs."""

    iterations_per_second: float | None = field(default=None, metadata=wire(Maybe(Number())))
    """``None`` if unknown."""
    confidence: float = field(default=0.0, metadata=wire(Number(0.0, 1.0)))
    """How far that speed can be trusted, from 0 to 1."""
    remaining_seconds: float | None = field(default=None, metadata=wire(Maybe(Number())))
    """Until the job has ended; ``None``: not known."""
    pause_seconds: float = field(default=0.0, metadata=wire(Number()))
    """For how long the change keeps the job from training."""


EXPECTED = Nested(Expected)


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """The first line."""

    format: str = field(default=FORMAT, metadata=wire(_NAME))
    version: int = field(default=VERSION, metadata=wire(Whole(1)))
    source: Source = field(metadata=wire(OneOf(Source)))
    clock: Clock = field(default=Clock.EPOCH, metadata=wire(OneOf(Clock)))
    since: float = field(default=0.0, metadata=wire(_TIME))
    """Lines before that time describe only the state at that time."""
    until: float = field(default=0.0, metadata=wire(_TIME))
    """The last line of a job holds until then."""
    policy: str = field(default="", metadata=wire(_NAME))
    title: str = field(default="", metadata=wire(_SENTENCE))
    """Name of the machine, cluster or trace."""
    missing: tuple[str, ...] = field(default=(), metadata=wire(Each(_SENTENCE, MOST_MISSING)))
    """Gaps of the source, as sentences; empty: nothing is known to be missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """A GPU goes into service, or out of it."""

    at: float = field(metadata=wire(_TIME))
    node: str = field(metadata=wire(_NAME))
    gpu: int = field(metadata=wire(Whole()))
    """Its number on the node."""
    gpu_type: str = field(default="", metadata=wire(_NAME))
    uuid: str = field(default="", metadata=wire(_NAME))
    in_service: bool = field(default=True, metadata=wire(Flag()))
    reason: str = field(default="", metadata=wire(_SENTENCE))
    """Why it is out of service."""
    held: bool = field(default=False, metadata=wire(Flag()))
    """A job that the reader may not see has it; not out of service, and no job of this record gets it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Submitted:
    """A job was submitted."""

    at: float = field(metadata=wire(_TIME))
    job: str = field(metadata=wire(_NAME))
    options: tuple[int, ...] = field(default=(), metadata=wire(Each(Whole(1), _MOST)))
    """The numbers of GPUs that it can run on."""
    requested: int = field(default=0, metadata=wire(Whole()))
    priority: int = field(default=0, metadata=wire(Whole(-(10**9), 10**9)))
    model: str = field(default="", metadata=wire(_NAME))
    user: str = field(default="", metadata=wire(_NAME))
    """The value of the label ``dljob.io/user``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decided:
    """The scheduler decided about a job."""

    at: float = field(metadata=wire(_TIME))
    job: str = field(metadata=wire(_NAME))
    step: str = field(metadata=wire(_NAME))
    """``start``, ``reshape``, ``move``, ``stop``, ``wait`` or ``restart``."""
    generation: int = field(default=0, metadata=wire(Whole()))
    """Counts the decisions about a job."""
    cause: str = field(default="", metadata=wire(_NAME))
    for_job: str | None = field(default=None, metadata=wire(Maybe(_NAME)))
    """The other job that the reason names: for which this one makes room, or which is ahead."""
    sentence: str = field(default="", metadata=wire(_SENTENCE))
    old: Placement | None = field(default=None, metadata=wire(_PLACEMENT))
    new: Placement | None = field(default=None, metadata=wire(_PLACEMENT))
    expected: Expected | None = field(default=None, metadata=wire(Maybe(EXPECTED)))
    cost_seconds: float | None = field(default=None, metadata=wire(Maybe(Number())))
    """For how long the job then did not train because of it; ``None``: not known, or not yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """A job has these GPUs until its next line of this kind or its end."""

    at: float = field(metadata=wire(_TIME))
    job: str = field(metadata=wire(_NAME))
    generation: int = field(default=0, metadata=wire(Whole()))
    placement: Placement | None = field(default=None, metadata=wire(_PLACEMENT))
    gpu_seconds: float = field(default=0.0, metadata=wire(Number()))
    """GPU-seconds that the job had used by then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """A change of a job's GPUs reached a stage."""

    at: float = field(metadata=wire(_TIME))
    job: str = field(metadata=wire(_NAME))
    phase: Stage = field(metadata=wire(OneOf(Stage)))
    generation: int = field(default=0, metadata=wire(Whole()))
    """Of the decision that asked for the change."""
    node: str = field(default="", metadata=wire(_NAME))
    """Where a job has several nodes, each of them reaches a phase; empty: all of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a job is, and how fast it trains from now on."""

    at: float = field(metadata=wire(_TIME))
    job: str = field(metadata=wire(_NAME))
    iteration: float = field(default=0.0, metadata=wire(Number()))
    iterations_total: float | None = field(default=None, metadata=wire(Maybe(Number())))
    iterations_per_second: float = field(default=0.0, metadata=wire(Number()))
    metric: float | None = field(default=None, metadata=wire(Maybe(Number(-1e300))))
    lost_seconds: float = field(default=0.0, metadata=wire(Number()))
    """How long the iterations took that the job has repeated by then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Happened:
    """Something else that happened to a job, such as a crash or a lost node."""

    at: float = field(metadata=wire(_TIME))
    job: str = field(metadata=wire(_NAME))
    name: str = field(metadata=wire(_NAME))
    message: str = field(default="", metadata=wire(_SENTENCE))
    warning: bool = field(default=False, metadata=wire(Flag()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """A job is over; it has no GPUs any more."""

    at: float = field(metadata=wire(_TIME))
    job: str = field(metadata=wire(_NAME))
    outcome: str = field(metadata=wire(_NAME))
    """``Completed``, ``Failed`` or ``Removed``."""
    gpu_seconds: float = field(default=0.0, metadata=wire(Number()))
    reshapes: int = field(default=0, metadata=wire(Whole()))
    message: str = field(default="", metadata=wire(_SENTENCE))
    lost_seconds: float = field(default=0.0, metadata=wire(Number()))
    """How long the iterations took that the job has repeated."""


Line = Gpu | Submitted | Decided | Given | Phase | Progress | Happened | Ended

LINES = (Gpu, Submitted, Decided, Given, Phase, Progress, Happened, Ended)
"""In the order in which those of one instant are written: a job is submitted before it is decided about."""

_LINE = Either(LINES)
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
    line: Line = _LINE.read(codec.parse(text.encode()), "")
    return line


def encode(record: Record) -> Iterator[str]:
    """Yield the lines of a file, each with its end."""
    header = Nested(Header).write(record.header)
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
        header: Header = Nested(Header).read(document, "")
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
