"""
How AFS divides GPUs among jobs: one each first, then one by one by its rule, then whole options.

Used by ``afs-l``, ``afs-p``, ``afs-s``, ``srtf-e`` and ``srsf-e``. A :class:`Sharing` counts the GPUs of each
type; on which nodes they are is the business of :mod:`dljob_lab.policies.elastic.afs.places`, to which the
targets go. The steps are those of AFS (Hwang et al., NSDI '21), sections 3.3 and 4.4:

1. :meth:`Sharing.admit` gives each job in turn the least that it can run on, while GPUs last.
2. :meth:`Sharing.hand_out` gives the rest away one by one, each to the top of :func:`hand_out`.
3. :meth:`Sharing.regulate` rounds to numbers that the job, and network packing, allow.
"""

import heapq
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from dljob.core.contract import View
from dljob.core.model import Cluster, JobId, JobState
from dljob.core.placement.counting import count_usable
from dljob.core.placement.largest import largest_possible, may_be_anywhere
from dljob.core.policies.common.ordering import Count, Line, rank_types
from dljob.core.predicting.conclusions import Kept
from dljob.core.profiles import JobType
from dljob_lab.policies.elastic.afs.curves import Curve, make_curve, overestimate

BAND = 1.0
"""By how much saturations differ before efficiency decides: the 1 of ``x_b + 1 < x_a``."""


class Contender:
    """A job that has at least its least, while the rest is handed out."""

    __slots__ = ("count", "curve", "gpu_type", "is_unmeasured", "most", "state", "work")

    def __init__(self, state: JobState, gpu_type: str, *, curve: Curve) -> None:
        self.state = state
        self.gpu_type = gpu_type
        self.curve = curve
        self.count = curve.options[0]
        self.most = curve.most
        """The number to which it may grow now."""
        self.work = 0.0
        """Its remaining training, in units of its curve; 0 until it is asked for."""
        self.is_unmeasured = False
        """True if its speeds are supposed, because none was ever measured."""


Measure = Callable[[Contender], float]
"""Something by which contenders are compared; the least comes first."""


def measure_saturation(each: Contender) -> float:
    """Return how many times its present speed is what one more GPU adds."""
    return each.curve.saturation(each.count)


def measure_length(each: Contender) -> float:
    """Return its remaining training time with its present GPUs: ``len(cnt)`` of Algorithm 1."""
    return each.work / each.curve.speed(each.count)


@dataclass(frozen=True, slots=True)
class Draw:
    """
    A number for each job that depends on the seed alone, where the paper says "at random".

    A job keeps it, because shares that change at every event without a cause would cost restarts.
    """

    seed: int

    def __call__(self, each: Contender) -> float:
        return float(zlib.crc32(f"{self.seed}/{each.state.id}".encode()))


class Target(NamedTuple):
    """The GPUs that a job is to have."""

    state: JobState
    gpus: int
    gpu_type: str
    """Types joined by ``+`` are a mixture, which is kept as it is."""
    curve: Curve


@dataclass(frozen=True, slots=True)
class Terms:
    """By what :func:`hand_out` compares contenders."""

    precedence: Measure
    """Which of two comes first that are as efficient as each other: the shorter one for AFS-L."""
    saturation: Measure = measure_saturation
    band: float = BAND


def hand_out(contenders: Iterable[Contender], gpus: int, *, terms: Terms) -> int:
    """
    Give GPUs away one by one, each to the job of top priority; return how many no job can use.

    It is Algorithm 1's ``TOPPRIORITY`` with one order of its scan. That order is open in the paper
    ("any job in J"), and it matters, because the comparison is not transitive where the shorter
    job wins: with saturations 2.5, 1.67 and 1 of a short, a longer and a long job, the first beats the
    second, the second the third, and the third the first. Here the scan meets the most efficient
    job before all that it does not beat, and after the others. So no job gets a GPU that the most
    efficient one has a claim to; of the others, those within the band of it, the shortest wins.

    It takes a time that grows with GPUs + jobs, not with their product: jobs within the band are in
    a heap by precedence, all others in one by saturation.
    """
    within: list[tuple[float, int, Contender]] = []
    beyond: list[tuple[float, int, Contender]] = []
    levels: list[tuple[float, int, int, Contender]] = []

    def enter(each: Contender) -> None:
        if each.count < each.most:
            level, order = terms.saturation(each), each.state.order
            heapq.heappush(beyond, (level, order, each))
            heapq.heappush(levels, (level, order, each.count, each))

    for contender in contenders:
        enter(contender)
    while gpus > 0 and levels:
        lowest, _, count, contender = levels[0]
        if count != contender.count:
            heapq.heappop(levels)  # It has been given more since.
            continue
        most = lowest + terms.band
        while beyond and beyond[0][0] <= most:
            _, order, near = heapq.heappop(beyond)
            heapq.heappush(within, (terms.precedence(near), order, near))
        _, order, top = heapq.heappop(within)
        level = terms.saturation(top)
        if level > most:
            # A curve that bends upwards has lowered the band since it came in.
            heapq.heappush(beyond, (level, order, top))
            continue
        top.count += 1
        gpus -= 1
        enter(top)
    return gpus


class Sharing:
    """The GPUs of a cluster, by count, while they are divided."""

    def __init__(self, view: View, *, packing: bool, overestimates: bool = False) -> None:
        self.view = view
        self.left: dict[str, int] = dict(view.cluster.totals)
        self.most = view.cluster.total
        """How many are left of all types."""
        self.contenders: dict[JobId, Contender] = {}
        self.fixed: dict[JobId, Target] = {}
        """Jobs on a mixture of types, which are not compared with others."""
        self.packing = packing
        self._curves = _recall_curves(view, packing=packing, overestimates=overestimates)

    # --- 1. to each its least

    def admit(self, line: Line, count: Count | None = None) -> None:
        """
        Give jobs in this order their least, skipping those that too few GPUs are left for.

        With ``count`` each gets that number instead. Jobs that have something are passed over.
        """
        for state in line(self):
            if self.most == 0:
                break
            is_small = state.placement is not None or state.least <= self.most
            if is_small and state.id not in self.contenders and state.id not in self.fixed:
                self._take(state, count)

    def _take(self, state: JobState, count: Count | None) -> None:
        kind = _choose_type(state, self.view, left=self.left)
        if kind is not None and "+" in kind:
            self._take_mixture(state, kind)
        elif kind is not None:
            curve, is_unmeasured = self._find_curve(state, kind)
            contender = Contender(state, kind, curve=curve)
            contender.is_unmeasured = is_unmeasured
            if count is not None:
                contender.count = curve.round_down(max(contender.count, count(state, self.view)))
            if contender.count <= self.left.get(kind, 0):
                self._deduct(kind, contender.count)
                self.contenders[state.id] = contender

    def _deduct(self, kind: str, gpus: int) -> None:
        self.left[kind] -= gpus
        self.most -= gpus

    def _take_mixture(self, state: JobState, kind: str) -> None:
        held = state.placement
        needs: dict[str, int] = {}
        if held is not None:
            for node, gpus in count_usable(held, self.view.cluster).items():
                name = self.view.cluster.by_name[node].gpu_type
                needs[name] = needs.get(name, 0) + gpus
        else:
            missing = state.least
            for name in kind.split("+"):
                needs[name] = min(missing, self.left.get(name, 0))
                missing -= needs[name]
        gpus = held.gpus if held is not None else state.least
        short = held is None and sum(needs.values()) < gpus
        if short or any(self.left.get(name, 0) < taken for name, taken in needs.items()):
            return
        for name, taken in needs.items():
            self._deduct(name, taken)
        self.fixed[state.id] = Target(state, gpus, kind, Curve((gpus,), (1.0,)))

    def _find_curve(self, state: JobState, kind: str) -> tuple[Curve, bool]:
        return self._curves.find(state, kind, view=self.view)

    # --- 2. the rest one by one

    def hand_out(self, terms: Terms) -> None:
        """Give away what is left of each type, to the jobs that have their least of it."""
        for kind, those in self._by_type().items():
            self._limit_unmeasured(those, self.view.cluster.totals[kind] // len(those))
            left = hand_out(those, self.left[kind], terms=terms)
            self._deduct(kind, self.left[kind] - left)

    def _limit_unmeasured(self, contenders: Iterable[Contender], fair: int) -> None:
        """Let jobs of which nothing is measured have no more than their fair share (section 4.5)."""
        for each in contenders:
            if each.is_unmeasured:
                each.most = min(each.most, max(each.count, fair))

    def _by_type(self) -> dict[str, list[Contender]]:
        kinds: dict[str, list[Contender]] = {}
        for each in self.contenders.values():
            kinds.setdefault(each.gpu_type, []).append(each)
        return kinds

    def weigh(self) -> None:
        """Find out how much the contenders have to train yet, where their lengths matter."""
        predictor, now = self.view.predictor, self.view.now
        for each in self.contenders.values():
            least = each.curve.options[0]
            shape = predictor.shape(least, each.gpu_type)
            time = predictor.training_time(each.state, shape, now=now)
            each.work = time * each.curve.speeds[0]

    # --- 3. whole options

    def regulate(self) -> None:
        """
        Round each share down to an option, and give what is over to those nearest to their next.

        That is the proof of Proposition 2 in appendix E, where the choice is open; section 4.4 asks
        for the plan with the least difference from the original one, and so the next step is
        always the one after which the differences are least in sum.
        """
        for kind, those in self._by_type().items():
            left, steps = self.left[kind], list[tuple[float, int, int, Contender]]()
            for each in those:
                wanted = each.count
                each.count = each.curve.round_down(wanted)
                left += wanted - each.count
                _push_step(steps, each, wanted=wanted)
            while steps and left > 0:
                _, _, wanted, each = heapq.heappop(steps)
                higher = each.curve.option_above(each.count)
                if higher is not None and higher - each.count <= left:
                    left -= higher - each.count
                    each.count = higher
                    _push_step(steps, each, wanted=wanted)
            self._deduct(kind, self.left[kind] - left)

    def targets(self) -> list[Target]:
        """The target of each job."""
        shared = [Target(c.state, c.count, c.gpu_type, c.curve) for c in self.contenders.values()]
        return [*self.fixed.values(), *shared]

    def make_target(self, state: JobState, kind: str) -> Target:
        """A job that is let in with its least after all."""
        curve = Curve((state.least,), (1.0,)) if "+" in kind else self._find_curve(state, kind)[0]
        return Target(state, state.least, kind, curve)


def _choose_type(state: JobState, view: View, *, left: Mapping[str, int]) -> str | None:
    """
    The type that the job has, or else the one that promises most: what is left, times the speed.

    A running job is not sent to another type: the paper knows one type, and a move costs.
    """
    if state.placement is not None:
        return state.placement.gpu_type
    kinds = rank_types(state, state.least, view=view)
    if len(kinds) == 1:
        return kinds[0] if left[kinds[0]] >= state.least else None
    able = [
        kind
        for kind in kinds
        if left[kind] >= state.least
        and largest_possible(state, view.cluster, gpu_type=kind) >= state.least
    ]
    if not able:
        return "+".join(sorted(kinds)) if state.job.gpus.mixed and kinds else None
    speed, shape = view.predictor.speed, view.predictor.shape
    return max(able, key=lambda k: (left[k] * speed(state.job, shape(state.least, k)), left[k]))


def _push_step(
    steps: list[tuple[float, int, int, Contender]], each: Contender, *, wanted: int
) -> None:
    higher = each.curve.option_above(each.count)
    if higher is not None and higher <= each.most:
        cost = abs(higher - wanted) - abs(wanted - each.count)
        heapq.heappush(steps, (cost, each.state.order, wanted, each))


class _Curves:
    """The curves of jobs, for as long as the profiles and the cluster are the same."""

    def __init__(self, view: View, *, packing: bool, overestimates: bool) -> None:
        self.profiles = view.predictor.profiles
        self.cluster = view.cluster
        self.packing = packing
        self.overestimates = overestimates
        self._known: dict[tuple[JobType, tuple[int, ...], str, int], tuple[Curve, bool]] = {}

    def suits(self, view: View, *, packing: bool, overestimates: bool) -> bool:
        """Return whether this is about the same things."""
        same = self.profiles is view.predictor.profiles and self.cluster is view.cluster
        return same and (self.packing, self.overestimates) == (packing, overestimates)

    def find(self, state: JobState, kind: str, *, view: View) -> tuple[Curve, bool]:
        """The curve of a job on a type, and whether it is supposed because nothing is measured."""
        options = state.job.gpus.options
        limit = options[-1]
        if limit > self.cluster.largest_node.get(kind, 0) or not may_be_anywhere(
            state, self.cluster
        ):
            limit = min(
                limit, max(state.least, largest_possible(state, self.cluster, gpu_type=kind))
            )
        key = (state.job.type, options, kind, limit)
        known = self._known.get(key)
        if known is None:
            allowed = tuple(gpus for gpus in options if gpus <= limit)
            if self.packing:
                allowed = keep_packed(allowed, kind, cluster=self.cluster)
            known = self._known[key] = self._make(state, allowed, kind=kind, view=view)
        return known

    def _make(
        self, state: JobState, options: tuple[int, ...], *, kind: str, view: View
    ) -> tuple[Curve, bool]:
        predictor = view.predictor
        speeds = tuple(predictor.speed(state.job, predictor.shape(n, kind)) for n in options)
        measured = options[-1] if speeds[0] > 0.0 else 0
        if self.overestimates:
            measured = self._find_measured(state, kind)
            speeds = overestimate(options, speeds, measured=measured)
        return make_curve(options, speeds), measured == 0

    def _find_measured(self, state: JobState, kind: str) -> int:
        profile = self.profiles.get(state.job.type)
        if profile is None:
            return 0
        return max((s.gpus for s in profile.speeds if s.gpu_type == kind), default=0)


_kept: Kept[_Curves] = Kept(most=8)


def _recall_curves(view: View, *, packing: bool, overestimates: bool) -> _Curves:
    return _kept.recall(
        lambda curves: curves.suits(view, packing=packing, overestimates=overestimates),
        lambda: _Curves(view, packing=packing, overestimates=overestimates),
    )


def keep_packed(options: tuple[int, ...], kind: str, *, cluster: Cluster) -> tuple[int, ...]:
    """
    Those numbers that network packing allows: a factor or a multiple of the GPUs of a machine.

    All of them where there is one machine, because there is no network between machines then; and
    where it would allow none, because the job must run.
    """
    sizes = [len(node.gpus) for node in cluster.nodes if node.gpu_type == kind]
    size = max(sizes, default=1)
    kept = tuple(n for n in options if n % size == 0 or (n < size and size % n == 0))
    return kept if kept and len(sizes) > 1 else options
