"""The record of a job: the status of a DLJob, on every platform.

Only the controller's loop writes the record, and always before it acts on it (law 4). A controller
that starts reads the decisions from the record, and the held GPUs from the SideCars. Three fields
exist for law 1 alone. ``pods`` are the requested pods that are not proven to have ended.
``leftover`` are GPUs of former decisions that the job was not yet seen to have released. If a
SideCar cannot be reached, the job may hold everything of ``placement`` and ``leftover`` on that
node. ``used`` lists the pods in which processes may have started; the end of any other pod needs no
proof.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from typing import NamedTuple, NewType

from dljob.core.model import Cause, GpuRef, NodeName, Phase, Placement

DecisionNumber = NewType("DecisionNumber", int)
"""Counts the decisions about one job."""
StartNumber = NewType("StartNumber", int)
"""The number on the wire: decision n stops processes with 2n and starts them with 2n + 1."""


class Booking(NamedTuple):
    node: NodeName
    serial: int = 0
    """Counts the pods of the job, to distinguish a new pod from an old one on the same node."""
    shaped: DecisionNumber = DecisionNumber(0)
    """The value of :attr:`Status.shaped` when the pod was requested."""


class Ended(NamedTuple):
    """
    Containers whose pods were forgotten before the other pods of the same start had ended.

    All processes of these containers ended with status 0.
    """

    start: StartNumber = StartNumber(0)
    """The start that the containers were a part of, by its generation on the wire."""
    containers: int = 0
    unasked: int = 0
    """The number of containers in which the processes ended without a command."""


class ConditionType(StrEnum):
    """Facts about a job in addition to its phase."""

    SCHEDULED = "Scheduled"
    """GPUs are assigned to the job; if not, the reason says why it waits."""
    QUOTA_RESERVED = "QuotaReserved"
    """Kueue has admitted GPUs for the job; the message says how many, and which it has taken back. Only in a queue.
    With shares of users: the message says how many of its GPUs are borrowed. Only while it has GPUs."""
    INITIALIZED = "Initialized"
    """All pods of the job are up, and their SideCars ready."""
    PROGRESSING = "Progressing"
    """The job's iterations advance; false when they stand still."""
    TROUBLED = "Troubled"
    """SideCars of the job report faults; the reason names all of them."""
    SET_ASIDE = "SetAside"
    """DLJob makes no decisions about the job at the moment; the reason says why."""
    INFORMED = "Informed"
    """The policy knows all that it uses of the job; if not, the message names its assumptions."""
    LIVE = "Live"
    """The processes of the job stay when its GPUs change; not reported of trainings that do not register for that."""
    SAVED = "Saved"
    """A change of its GPUs loses no work of the job; if it would, the job keeps its GPUs."""
    FINISHED = "Finished"
    """The job has ended; the reason says how."""
    COMPLETE = "Complete"
    """Set at the end of a job that completed, as on a Job of batch/v1; other jobs lack it."""
    FAILED = "Failed"
    """Set at the end of a job that failed, as on a Job of batch/v1; other jobs lack it."""
    TEMPLATE_VALID = "TemplateValid"
    """Kubernetes accepts the job's pods; not reported on one machine."""


class Trust(StrEnum):
    """How far DLJob counts on the checkpoints of a job."""

    UNTRIED = "Untried"
    CONFIRMED = "Confirmed"
    """The SideCar has confirmed the latest requested checkpoint."""
    FAILED = "Failed"
    """The latest requested checkpoints were not confirmed in time, or a start did not continue from
    one.
    """


@dataclass(frozen=True, slots=True)
class Condition:
    """As a metav1.Condition."""

    type: ConditionType
    status: bool
    reason: str
    """CamelCase, for programs."""
    message: str
    """A sentence, for people."""
    since: float = field(default=0.0, compare=False)
    """The time when ``status`` last changed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """Everything that is recorded about a job.

    Times are seconds since the epoch; 0 or ``None``: never.
    :mod:`dljob.control.situation.status_schema` describes the fields; the attributes here have only the
    details that users do not need. The fields are not nested as in the document:
    docs/decisions/0013-status-is-flat.md explains why.
    """

    phase: Phase = Phase.SUBMITTED
    generation: DecisionNumber = DecisionNumber(0)
    placement: Placement | None = None
    adopted: StartNumber = StartNumber(0)
    """The start that fits this decision, because a newer decision cancelled a change before it
    began; 0: none.
    """
    shaped: DecisionNumber = DecisionNumber(0)
    """Pods booked before this decision are useless where pods get their devices when they start."""
    gang: int = 0
    batch_size: int | None = None
    cause: Cause | None = None
    saves: bool = True
    pods: tuple[Booking, ...] = ()
    used: frozenset[int] = frozenset()
    """The serials of the pods that were seen up; no other pod ever got a command to run."""
    leftover: frozenset[GpuRef] = frozenset()
    booked: int = 0
    booked_at: float = 0.0

    submitted_at: float = 0.0
    decided_at: float = 0.0
    started_at: float | None = None
    finished_at: float | None = None
    retry_at: float = 0.0

    running: StartNumber = StartNumber(0)
    containers: int = 0
    broken: StartNumber = StartNumber(0)
    """The rest of this start hangs and cannot save. Its failure is counted already."""
    ended: Ended = Ended()
    paused_at: float | None = None
    """Reset at the first step after the change."""

    iteration: int = 0
    iterated_at: float = 0.0
    lap: int = 0
    lapped: int = 0
    iterations_total: float = 0.0
    service: float = 0.0
    """``gpuSeconds`` in the document."""
    counted_at: float = 0.0
    speed: float = 0.0
    """``iterationsPerSecond`` in the document."""
    metric: float | None = None
    reached: int = 0
    bound_to: tuple[NodeName, ...] = ()

    trust: Trust = Trust.UNTRIED
    judged: StartNumber = StartNumber(0)
    trials: int = 0
    tried: int = 0
    triable: bool = False
    ends: bool = False
    """If true, no further trial is made."""
    failed_at: float = 0.0
    saved: int = 0
    """The iteration of the last confirmed checkpoint, or the one at which a start continued."""
    saved_at: float = 0.0
    heard: StartNumber = StartNumber(0)
    pace: float = 0.0
    lost_iterations: int = 0
    lost_seconds: float = 0.0

    live: Trust = Trust.UNTRIED
    """How far DLJob counts on live changes of the job."""
    live_tried: int = 0
    live_failures: int = 0
    live_failed_in: StartNumber = StartNumber(0)
    live_changes: int = 0
    live_seconds: float = 0.0

    failures: int = 0
    restarts: int = 0
    setbacks: int = 0
    """Includes starts that lasted only a short time."""
    reshapes: int = 0
    reshape_seconds: float = 0.0
    exit_code: int | None = None
    message: str = ""
    conditions: tuple[Condition, ...] = ()

    @property
    def is_final(self) -> bool:
        return self.phase in (Phase.COMPLETED, Phase.FAILED)

    @property
    def has_anything(self) -> bool:
        """True while the job has GPUs, or a pod that may have been started."""
        return bool(self.pods) or self.placement is not None

    @property
    def stop_generation(self) -> StartNumber:
        """The number of a command to stop: the end of the generation before."""
        return StartNumber(2 * self.generation)

    @property
    def run_generation(self) -> StartNumber:
        """The number of a command to run. Each is one start of all processes of the job."""
        return self.adopted or StartNumber(2 * self.generation + 1)

    def says_the_same_as(self, other: "Status") -> bool:
        """Return True if the statuses differ only in progress, which alone causes no write."""
        return self is other or all(
            getattr(self, name) == getattr(other, name) for name in _LASTING
        )

    def condition(self, kind: ConditionType) -> Condition | None:
        """The condition of this type, if it was ever set."""
        # A generator would cost more than the conditions here, in the hot path of every cycle.
        for each in self.conditions:
            if each.type is kind:
                return each
        return None

    def decided(
        self,
        placement: Placement | None,
        *,
        now: float,
        saves: bool = True,
        gang: int = 0,
        batch_size: int | None = None,
        cause: Cause | None = None,
    ) -> "Status":
        """Record a decision: the GPUs that the job gives up are leftover until their release is
        proven."""
        number = DecisionNumber(self.generation + 1)
        old = self.placement.refs() if self.placement is not None else ()
        new = placement.refs() if placement is not None else ()
        held_for = now - max(self.counted_at, self.decided_at)
        grows_piece_by_piece = bool(gang) and set(old) <= set(new)
        is_other = placement != self.placement and not grows_piece_by_piece
        return replace(
            self,
            service=self.service + len(old) * held_for,
            counted_at=now,
            generation=number,
            placement=placement,
            adopted=StartNumber(0),
            shaped=number if is_other else self.shaped,
            gang=gang,
            batch_size=batch_size if batch_size is not None else self.batch_size,
            cause=cause,
            saves=saves,
            leftover=self.leftover.union(old).difference(new),
            decided_at=now,
        )

    def with_pods(self, nodes: Iterable[NodeName], now: float) -> "Status":
        """Book a pod on each of these nodes."""
        pods, booked = list(self.pods), self.booked
        for node in nodes:
            booked += 1
            pods.append(Booking(node, booked, self.shaped))
        return replace(self, pods=tuple(pods), booked=booked, booked_at=now)

    def with_used(self, nodes: Iterable[NodeName]) -> "Status":
        """Note that the pods on these nodes are up, and can get commands to run from now on."""
        there = set(nodes)
        used = self.used | {pod.serial for pod in self.pods if pod.node in there}
        return replace(self, used=used) if used != self.used else self

    def without_pods(self, nodes: Iterable[NodeName], *, ended: Ended | None = None) -> "Status":
        """Forget these pods, whose end is proven, and the GPUs that they held, but not how they ended."""
        gone = set(nodes)
        pods = tuple(pod for pod in self.pods if pod.node not in gone)
        return replace(
            self,
            pods=pods,
            used=self.used & {pod.serial for pod in pods},
            leftover=frozenset(ref for ref in self.leftover if ref.node not in gone),
            ended=ended or self.ended,
        )

    def with_condition(self, new: Condition, now: float) -> "Status":
        """Set a condition; the time of its last change stays if its status does."""
        old = self.condition(new.type)
        if old == new:
            return self
        since = old.since if old is not None and old.status == new.status else now
        others = self.without(new).conditions
        return replace(self, conditions=(*others, replace(new, since=since)))

    def without(self, old: Condition) -> "Status":
        """Drop the condition of this type."""
        others = tuple(each for each in self.conditions if each.type is not old.type)
        return replace(self, conditions=others)


_FIGURES = (
    *("counted_at", "heard", "iterated_at", "iteration", "iterations_total", "lap", "lapped"),
    *("metric", "pace", "service", "speed"),
)
_LASTING = tuple(each.name for each in fields(Status) if each.name not in _FIGURES)
