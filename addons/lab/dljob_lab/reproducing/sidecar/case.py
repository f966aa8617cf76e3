"""
The case study of the SideCar paper (section II.C): two jobs on four GPUs, in three approaches.

Called by :mod:`dljob_lab.reproducing.sidecar.evaluation` with the frozen constants, and again and again by
:mod:`dljob_lab.reproducing.sidecar.fitting`, which found them. The times are read from the log of a
world that was really played; no formula stands between the constants and them.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from dljob.core.contract import Policy
from dljob.core.model import Checkpoint, GpuDemand, Job, JobId, Mechanism, Node, Training
from dljob.core.policies.baselines.max_min import MaxMin
from dljob.core.policies.papers.adaptive import Adaptive
from dljob.core.profiles import JobType, Profile, Speed
from dljob.sim.engine.settings import Setting
from dljob.sim.engine.world import World
from dljob.sim.jobs.workloads import TracedJob, Workload
from dljob.sim.results.records import Happening, Record
from dljob_lab.policies.rigid.fjf import Fjf
from dljob_lab.reproducing.sidecar.constants import Constants
from dljob_wire.messages import Shape

JOB_1, JOB_2 = JobId("job-1"), JobId("job-2")

SUBMITTED_2_S = 180.0
"""When job 2 is submitted (Table I)."""

GPUS = 4


class Approach(NamedTuple):
    """One of the three, and the policy and mechanism that act as it does."""

    name: str
    policy: Policy
    mechanism: Mechanism


APPROACHES = (
    # The requested numbers, which stay constant.
    Approach("default", Fjf(), Mechanism.RECREATE),
    # Two GPUs each, and all of them for the last. It restarts job 1 for its last minute and a
    # half, so it pays no heed to what a restart costs, and neither does this policy.
    Approach("termination", MaxMin(), Mechanism.RECREATE),
    Approach("sidecar", Adaptive(), Mechanism.IN_PLACE),
)

PAPER: Mapping[str, Mapping[str, float]] = {
    "default": {"job-1-done": 633, "job-2-trains": 807, "job-2-done": 1249},
    "termination": {
        "job-2-trains": 384,
        "job-2-done": 815,
        "job-1-trains-on-4": 1057,
        "job-1-done": 1143,
        "reshape-down": 204,
        "reshape-up": 242,
    },
    "sidecar": {
        "job-2-trains": 290,
        "job-2-done": 692,
        "job-1-trains-on-4": 729,
        "job-1-done": 845,
        "reshape-down": 27,
        "reshape-up": 37,
    },
}
"""The eleven times and the four reshape times of section II.C, by approach, in seconds."""


class Sums(NamedTuple):
    """The two figures of a run that the paper compares (Figure 4)."""

    makespan_s: float
    avg_jct_s: float


def sum_up(times: Mapping[str, float]) -> Sums:
    """Sum up an approach, from the times of its jobs."""
    ends = times["job-1-done"], times["job-2-done"]
    return Sums(max(ends), (sum(ends) - SUBMITTED_2_S) / 2)


@dataclass(frozen=True, slots=True)
class Played:
    """The results of one approach."""

    approach: str
    times: Mapping[str, float]
    """By the names of :data:`PAPER`; not a number where it never happened."""
    record: Record


def play_case(constants: Constants) -> tuple[Played, ...]:
    """Play the two jobs once in each approach."""
    return tuple(_play(approach, constants) for approach in APPROACHES)


def _play(approach: Approach, constants: Constants) -> Played:
    setting = Setting(
        nodes=(Node.of("node", GPUS),), mechanism=approach.mechanism, costs=constants.costs
    )
    record = World(make_workload(constants), setting, policy=approach.policy).play()
    read = read_times(record)
    times = {event: read[event] for event in PAPER[approach.name]}
    return Played(approach.name, times, record)


def make_workload(constants: Constants) -> Workload:
    """
    The two jobs of Table I, which train one iteration a second with the GPUs they requested.

    Only job 1 is reshaped in any approach, so only it has a second option.
    """
    profiles = {
        profile.type: profile
        for profile in (
            _make_profile("job-1", {4: 1.0, 2: constants.ratio}),
            _make_profile("job-2", {2: 1.0}),
        )
    }
    kinds = tuple(profiles)
    jobs = (
        _make_job(JOB_1, kinds[0], options=(2, 4), submitted_at=0.0, work_s=constants.work_1_s),
        _make_job(
            JOB_2, kinds[1], options=(2,), submitted_at=SUBMITTED_2_S, work_s=constants.work_2_s
        ),
    )
    return Workload("case-study", jobs, profiles, profiles)


def _make_profile(model: str, speeds: Mapping[int, float]) -> Profile:
    shapes = {Shape(gpus, 1, ""): Speed(speed) for gpus, speed in speeds.items()}
    return Profile(JobType(model), shapes)


def _make_job(
    name: JobId, kind: JobType, *, options: tuple[int, ...], submitted_at: float, work_s: float
) -> TracedJob:
    job = Job(
        id=name,
        gpus=GpuDemand(options=options, requested=max(options), max_nodes=1),
        training=Training(iterations=math.ceil(work_s)),
        type=kind,
        submitted_at=submitted_at,
        checkpoint=Checkpoint(shared=True),
    )
    return TracedJob(job, work_s)


def read_times(record: Record) -> Mapping[str, float]:
    """
    The times of section II.C as they happened in a world.

    Reshaping down lasts from the command that stops job 1 until job 2 trains, reshaping up
    from the end of job 2 until job 1 trains with four GPUs.
    """
    told = _first(record, JOB_1, what=Happening.HALTS)
    trains_2 = _first(record, JOB_2, what=Happening.TRAINS)
    done_2 = _first(record, JOB_2, what=Happening.COMPLETED)
    trains_on_4 = _first(record, JOB_1, what=Happening.TRAINS, gpus=GPUS, since=done_2)
    return {
        "job-1-done": _first(record, JOB_1, what=Happening.COMPLETED),
        "job-2-trains": trains_2,
        "job-2-done": done_2,
        "job-1-trains-on-4": trains_on_4,
        # A job 1 that had not begun by then halts only after that.
        "reshape-down": trains_2 - told if told < trains_2 else math.nan,
        "reshape-up": trains_on_4 - done_2,
    }


def _first(
    record: Record, job: JobId, *, what: Happening, gpus: int = 0, since: float = 0.0
) -> float:
    times = (
        entry.time
        for entry in record.log
        if entry.job == job and entry.what is what and entry.time >= since
        if not gpus or entry.gpus == gpus
    )
    return next(times, math.nan)


def compare(played: Iterable[Played]) -> Iterator[tuple[str, float, float]]:
    """Every time of the paper with ours next to it, as ``APPROACH/EVENT``, paper, ours."""
    for each in played:
        for event, paper in PAPER[each.approach].items():
            yield f"{each.approach}/{event}", paper, each.times[event]
