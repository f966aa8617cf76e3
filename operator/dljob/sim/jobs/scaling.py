"""
On how many GPUs the jobs of a trace can run, how fast, and how long they train in all.

Called by :mod:`dljob.sim.jobs.workloads` with the requests of a trace, one after the other, and at the end
for the profiles that they need. There is one :class:`Scaler` for traces that know nothing
but durations, and one for traces with models whose speeds were measured. All of them leave a job that asks for
more GPUs than the cluster has as it is: it can run on no fewer, so that every policy drops the
same jobs and their figures can be compared.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import NamedTuple, Protocol

from dljob.core.profiles import JobType, Profile, Speed
from dljob.installed import load_scenario
from dljob.sim.inputs.shipped import (
    find_folder,
    load_shipped,
    load_speeds,
)
from dljob.sim.inputs.traces import Kind, Request
from dljob.sim.jobs.curves import Curve, Ground, Pool, lay_out
from dljob_wire.messages import Shape

Profiles = Mapping[JobType, Profile]

MODEL_COLUMNS = ("model", "job_type", "application")
"""Where the formats have the model."""


class Scaling(NamedTuple):
    """How a job scales, and how much it has to do."""

    type: JobType
    options: tuple[int, ...]
    iterations: float
    curve: str = ""
    """The name of the curve whose measured speeds it follows, if any."""
    is_drawn: bool = False
    """True if that was drawn by lot."""


class Scaler(Protocol):
    """A rule by which the jobs of a trace scale."""

    rule: str
    """On which numbers of GPUs its elastic jobs may run, for people."""

    def scale(self, request: Request) -> Scaling:
        """Return how this job scales."""
        ...

    def profiles(self) -> Profiles:
        """The true speeds of all jobs that were asked about."""
        ...

    def notes(self) -> Iterator[str]:
        """The assumptions, in sentences for people."""
        ...


# --- nothing is known but a duration ------------------------------------------------------


class AsRequested:
    """
    Rigid jobs of which only the length is known: an iteration is a second, wherever they run.

    Their times stay whole numbers, so that figures agree to the last digit with those of others.
    """

    TYPE = JobType("as-requested")
    rule = ""

    def __init__(
        self, ground: Ground, measure: Callable[[Request], float] = lambda request: request.duration
    ) -> None:
        self._ground = ground
        self._measure = measure
        self._counts: set[int] = set()

    def scale(self, request: Request) -> Scaling:
        self._counts.add(request.gpus)
        return Scaling(self.TYPE, (request.gpus,), self._measure(request))

    def profiles(self) -> Profiles:
        # One speed on one node and on two says that spreading costs nothing, however far it goes.
        speeds = {
            Shape(gpus, nodes, kind): Speed(1.0)
            for kind in self._ground.gpu_types
            for gpus in sorted(self._counts)
            for nodes in range(1, min(gpus, 2) + 1)
        }
        return {self.TYPE: Profile(self.TYPE, speeds)}

    def notes(self) -> Iterator[str]:
        yield from ()


class Drawn:
    """
    Jobs that are given a measured scaling curve by lot, as in AFS (section 5.1).

    The lot falls on a curve that rises at least up to the GPUs the job asked for. It depends on
    the seed and the name of the job only: every policy plays the same jobs. The speed on the
    requested GPUs, packed, is one iteration a second, and the iterations are the duration; that
    is the same as the iterations being the duration times the measured speed there. Where the
    trace has the iterations too, the speed there is the one that they and the duration give.
    """

    rule = "each job the powers of two up to where its curve stops rising, and its request"

    def __init__(self, pool: Pool, ground: Ground, *, seed: int, rigid: bool) -> None:
        self._pool = pool
        self._ground = ground
        self._seed = seed
        self._rigid = rigid
        self._drawn: dict[JobType, tuple[Curve, Request, tuple[int, ...]]] = {}
        self._beyond = 0

    def scale(self, request: Request) -> Scaling:
        if request.iterations and not request.duration:
            raise request.row.error(
                f"{request.iterations:g} iterations in no time",
                field="duration_s",
                remedy="write for how long the job ran",
            )
        curve = self._pool.draw(request.gpus, f"{self._seed}/{request.id}")
        if not self._rigid:
            self._beyond += self._pool.furthest < request.gpus <= self._ground.largest
        kind = curve.type._replace(model=f"{curve.type.model}@{request.gpus}")
        if request.iterations:
            # Its iterations a second concern this job alone.
            kind = JobType(request.model, f"job {request.id}")
        options = self._options(curve, request)
        self._drawn.setdefault(kind, (curve, request, options))
        work = request.iterations or request.duration
        return Scaling(kind, options, work, curve=str(curve.type), is_drawn=True)

    def _options(self, curve: Curve, request: Request) -> tuple[int, ...]:
        if self._rigid or request.gpus > self._ground.largest:
            return (request.gpus,)
        peak = curve.peak(curve.standard_type(self._ground))
        most = min(max(peak, request.gpus), self._ground.largest)
        doublings = {1 << exponent for exponent in range(most.bit_length())}
        return tuple(sorted(doublings | {request.gpus}))

    def profiles(self) -> Profiles:
        return {
            kind: Profile(kind, self._speeds(*drawn)) for kind, drawn in sorted(self._drawn.items())
        }

    def _speeds(
        self, curve: Curve, request: Request, options: tuple[int, ...]
    ) -> dict[Shape, Speed]:
        norm = curve.speed_on(request.gpus, self._ground.reference, ground=self._ground)
        unit = request.iterations / request.duration if request.iterations else 1.0
        return lay_out(curve, options, ground=self._ground, norm=norm, unit=unit)

    def notes(self) -> Iterator[str]:
        if self._beyond:
            yield (
                f"no measured curve rises beyond {self._pool.furthest} GPUs: the {self._beyond} "
                "jobs that ask for more were given one that rises so far"
            )


# --- the model is known -------------------------------------------------------------------


class Measured:
    """Jobs of models that were measured: on the numbers of GPUs that ``choose`` gives, or else all measured ones."""

    rule = "each job those on which its model was measured, and its request"

    def __init__(
        self,
        find: Callable[[Request, JobType], Profile],
        identify: Callable[[Request], tuple[JobType, float]],
        *,
        ground: Ground,
        rigid: bool,
        choose: Callable[[Curve, Request, Ground], tuple[int, ...]] | None = None,
    ) -> None:
        self._find = find
        self._identify = identify
        self._ground = ground
        self._rigid = rigid
        self._choose = choose
        self._curves: dict[JobType, Curve] = {}
        self._counts: dict[JobType, set[int]] = {}

    def scale(self, request: Request) -> Scaling:
        kind, iterations = self._identify(request)
        curve = self._curves.get(kind)
        if curve is None:
            curve = self._curves[kind] = Curve(self._find(request, kind))
        options = self._options(curve, request)
        self._counts.setdefault(kind, set()).update(options)
        return Scaling(kind, options, iterations, curve=str(curve.type))

    def _options(self, curve: Curve, request: Request) -> tuple[int, ...]:
        if self._rigid or request.gpus > self._ground.largest:
            return (request.gpus,)
        if self._choose is not None:
            return self._choose(curve, request, self._ground)
        counts = curve.counts(curve.standard_type(self._ground))
        within = {count for count in counts if count <= self._ground.largest}
        return tuple(sorted(within | {request.gpus}))

    def profiles(self) -> Profiles:
        return {
            kind: Profile(kind, lay_out(curve, self._counts[kind], ground=self._ground))
            for kind, curve in sorted(self._curves.items())
        }

    def notes(self) -> Iterator[str]:
        yield from ()


def find_measured(table: Profiles, request: Request, kind: JobType) -> Profile:
    """Look a type up; if it was never measured, the error names the measured ones."""
    profile = table.get(kind)
    if profile is not None:
        return profile
    batches = sorted(other.batch_size for other in table if other.model == kind.model)
    if batches:
        message = f"{kind.model} was not measured at a global batch of {kind.batch_size}"
        known = f"one of {', '.join(map(str, batches))}"
    else:
        message = f"{kind.model!r} was never measured"
        known = f"one of {', '.join(sorted({other.model for other in table}))}"
    raise request.row.error(
        message,
        field=next(name for name in MODEL_COLUMNS if name in request.row.fields),
        remedy=f"take {known}, or give its speeds with --speeds",
    )


def identify_by_batch(request: Request) -> tuple[JobType, float]:
    """Return the job type and iterations from a trace with models and global batches."""
    return JobType(request.model, "", request.batch_size), request.iterations


_GAVEL_JOB = re.compile(r"(?P<model>.+?)(?: \(batch size (?P<batch>\d{1,9})\))?", re.ASCII)


def identify_gavel(request: Request) -> tuple[JobType, float]:
    """
    Read Gavel's job types, as ``LM (batch size 20)``.

    The batch is that of one GPU, so the global batch is this times the number of requested GPUs; it
    stays when they change. Gavel counts the steps of all GPUs, so one iteration is a step of each
    requested GPU.
    """
    parts = _GAVEL_JOB.fullmatch(request.model)
    assert parts is not None  # A name is never empty, and any other text is a model.
    batch = int(parts["batch"] or 0) * request.gpus
    return JobType(parts["model"], "", batch), request.iterations / request.gpus


# --- which rule for which trace -----------------------------------------------------------


def make_scaler(kind: Kind, own: Profiles, *, ground: Ground, seed: int, rigid: bool) -> Scaler:
    """
    Choose the rule for a kind of trace.

    ``own`` is what the user measured: it comes before what is shipped, and if there is any, lots
    are drawn from that alone.
    """
    if kind is Kind.DURATIONS and rigid:
        return AsRequested(ground)
    if kind in (Kind.DURATIONS, Kind.ITERATIONS):
        pool = Pool(own or load_standard_curves(), ground)
        return Drawn(pool, ground, seed=seed, rigid=rigid)
    if kind is Kind.SHOCKWAVE:
        return AsRequested(ground, load_scenario("shockwave")().measure)
    if kind is Kind.RUBICK:
        rubick = load_scenario("rubick")
        find = partial(find_measured, {**rubick.load_rubick(), **own})
        choose = rubick.choose_counts
        return Measured(find, identify_by_batch, ground=ground, rigid=rigid, choose=choose)
    table = {**load_shipped(), **own}
    if kind is Kind.POLLUX:
        applications = load_scenario("pollux-applications")(table)
        return Measured(applications.find, applications.identify, ground=ground, rigid=rigid)
    identify = identify_gavel if kind is Kind.GAVEL else identify_by_batch
    return Measured(partial(find_measured, table), identify, ground=ground, rigid=rigid)


def load_standard_curves() -> Profiles:
    """ElasticFlow's table, whose curves are cleaner and reach further than Gavel's."""
    return load_speeds(find_folder() / "elasticflow" / "throughput.csv")
