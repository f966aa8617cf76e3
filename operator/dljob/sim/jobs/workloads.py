"""
A workload: jobs with the truth about them that no policy sees.

:func:`read` makes one of a trace or of job files; :mod:`dljob.sim.engine.world` plays it. ``dljob simulate``
and ``dljob reproduce`` call both.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from dljob.core.model import Checkpoint, GpuDemand, Job, JobId, Training
from dljob.core.profiles import JobType, Profile
from dljob.sim.inputs.documents import (
    Described,
    Document,
    count_iterations,
    find_checkpoint,
    find_learning,
    is_document,
    read_documents,
)
from dljob.sim.inputs.shipped import load_shipped
from dljob.sim.inputs.traces import Request, Trace, read_trace
from dljob.sim.jobs.checkpointing import Kind
from dljob.sim.jobs.curves import Ground, Pool
from dljob.sim.jobs.learning import Learning
from dljob.sim.jobs.noise import Noise, noise_of
from dljob.sim.jobs.scaling import Scaling, load_standard_curves, make_scaler

__all__ = ["Learning", "TracedJob", "Workload", "read"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """
    The course of a job apart from its true speed, which :mod:`dljob.sim.engine.training` plays.

    The default is a job that trains at its true speed from its first step to its end, and reports it.
    """

    warm_up_s: float = 0.0
    """How long each start trains more slowly."""
    warm_up_pace: float = 1.0
    """The speed of that time, as a share of the true one."""
    crashes_after_s: float = math.inf
    """How long each start trains before it crashes."""
    is_mute: bool = False
    """True if it reports no progress."""


@dataclass(frozen=True, slots=True)
class TracedJob:
    """A job, and how long it really trains."""

    job: Job
    iterations: float
    """The true number that it needs."""
    learning: Learning | None = None
    """How its metric rises, for a job that is done when a target is reached."""
    believed: float | None = None
    """
    How many iterations policies believe that it needs (:mod:`dljob.sim.beliefs`); infinite: they know
    nothing of it; ``None``: they know the truth, or what its metric forecasts.
    """
    noise: Noise | None = None
    """The cost of larger batches in convergence; without one, there is none."""
    saves: bool = True
    """True if it saves itself when it is stopped; so does a job of which nothing else is said."""
    declares: bool = True
    """True if it says that it saves itself. One that does not, all the same, has a broken checkpoint."""
    curve: str = ""
    """The type of job whose measured speeds it follows, where that is one."""
    is_drawn: bool = False
    """True if that type was drawn by lot."""
    course: Course = Course()
    """Its warm-ups, crashes and silence."""
    is_live: bool = False
    """True if its processes stay when its GPUs change in place, as a trial at its first step shows."""


@dataclass(frozen=True, slots=True)
class Workload:
    """Jobs in order of submission; those of one instant keep the order of their file."""

    name: str
    jobs: tuple[TracedJob, ...]
    truths: Mapping[JobType, Profile]
    """The true speeds, which a policy need not know."""
    known: Mapping[JobType, Profile]
    """The speeds that policies may see."""
    notes: tuple[str, ...] = ()
    """The assumptions, in sentences for people."""
    rule: str = ""
    """On which numbers of GPUs elastic jobs may run, as :mod:`dljob.sim.premises` says it."""


def read(
    path: Path,
    *,
    rigid: bool,
    speeds: Mapping[JobType, Profile] | None,
    seed: int,
    gpu_types: tuple[str, ...],
    largest: int,
    node_gpus: int = 8,
    assign: Callable[[Trace], Trace] | None = None,
) -> Workload:
    """
    Read a trace, a DLJob file, or a folder of them.

    ``gpu_types`` are those of the cluster; a trace is about the first of them. ``largest`` is how
    many GPUs a job can have at most, ``node_gpus`` how many are on one node. A job that asks for
    more than ``largest`` is in the workload all the same: the world drops it, and says so. Costs
    in ``speeds`` are those of their types. ``assign`` may replace the requests
    of a trace by others (:meth:`dljob.sim.scenarios.Rules.assign`).
    """
    ground = Ground(
        gpu_types=tuple(dict.fromkeys(gpu_types)) or ("",), largest=largest, node_gpus=node_gpus
    )
    own = speeds or {}
    if is_document(path):
        workload = _read_documents(path, own, ground=ground, seed=seed, rigid=rigid)
    else:
        trace = read_trace(path)
        trace = assign(trace) if assign is not None else trace
        name = name_of(path)
        workload = _read_requests(trace, own, ground=ground, name=name, seed=seed, rigid=rigid)
    profiles = dict(workload.known)
    for kind, profile in workload.known.items():
        measured = own.get(profile.type)
        if measured is not None and measured.costs is not None:
            samples = measured.cost_samples
            profiles[kind] = replace(profile, costs=measured.costs, cost_samples=samples)
    return replace(workload, truths=profiles, known=profiles)


DOCUMENTS_RULE = "each job those that its spec.gpus allows"


def _read_requests(
    trace: Trace,
    own: Mapping[JobType, Profile],
    *,
    ground: Ground,
    name: str,
    seed: int,
    rigid: bool,
) -> Workload:
    scaler = make_scaler(trace.kind, own, ground=ground, seed=seed, rigid=rigid)
    jobs = tuple(_make_job(request, scaler.scale(request)) for request in trace.requests)
    profiles = scaler.profiles()
    notes = (*scaler.notes(), *_note_guaranteed(trace))
    return Workload(name, jobs, profiles, profiles, notes, scaler.rule)


def _note_guaranteed(trace: Trace) -> Iterator[str]:
    count = sum(request.guaranteed for request in trace.requests)
    if count:
        yield (
            f"{count} jobs are guaranteed the speed of the GPUs that they request: they may not run "
            "on a number of GPUs that is slower"
        )


def name_of(path: Path) -> str:
    """The name of a file without what says its format; ``philly_2869ce.csv.gz`` has two of it."""
    return path.resolve().name.removesuffix(".gz").rsplit(".", 1)[0]


def _make_job(request: Request, scaling: Scaling) -> TracedJob:
    job = Job(
        id=JobId(request.id),
        gpus=GpuDemand(options=scaling.options, requested=request.gpus),
        training=Training(
            iterations=math.ceil(scaling.iterations), batch_size=scaling.type.batch_size
        ),
        type=scaling.type,
        submitted_at=request.submitted_at,
        # Nothing keeps jobs of a trace on the nodes where they began.
        checkpoint=Checkpoint(shared=True),
    )
    return TracedJob(
        job,
        scaling.iterations,
        curve=scaling.curve,
        is_drawn=scaling.is_drawn,
        saves=request.checkpoint is Kind.GOOD,
        declares=request.checkpoint is not Kind.NONE,
        is_live=request.is_live,
    )


def _read_documents(
    path: Path, own: Mapping[JobType, Profile], *, ground: Ground, seed: int, rigid: bool
) -> Workload:
    documents = read_documents(path)
    pool = Pool(own or load_standard_curves(), ground)
    speeds = Described({**load_shipped(), **own}, pool, ground=ground, seed=seed)
    jobs = tuple(_describe(each, speeds, seed=seed, rigid=rigid) for each in documents)
    profiles = speeds.profiles()
    notes = tuple(speeds.notes())
    return Workload(name_of(path), jobs, profiles, profiles, notes, DOCUMENTS_RULE)


def _describe(document: Document, speeds: Described, *, seed: int, rigid: bool) -> TracedJob:
    job = document.job
    if rigid:
        job = replace(job, gpus=replace(job.gpus, options=(job.gpus.requested,)))
    learning = find_learning(document, seed)
    iterations = count_iterations(document, learning)
    job, curve, is_drawn = speeds.add(job)
    kind = find_checkpoint(document)
    return TracedJob(
        job,
        iterations,
        learning,
        noise=noise_of(job),
        curve=curve,
        is_drawn=is_drawn,
        saves=kind is Kind.GOOD,
        declares=kind is not Kind.NONE,
    )
