"""
A live system as a simulation: its jobs with their progress, its GPUs, and the speeds that it knows.

``dljob simulate --live`` calls :func:`read` with the place that ``dljob get`` would ask, and plays
what comes back. Everything is read from the documents that ``-o json`` prints, so one machine and
a cluster are read in the same way:

* **Jobs** that are neither ended, cancelled nor suspended. One that has GPUs trains there when the
  simulation begins, at time 0, also if a change of its GPUs is still under way. Its length is what
  the system believes of it. Where that is nothing, policies are not given it either, and it trains
  as long again as it has trained, an hour on its fewest GPUs at least.
* **GPUs** that are taken out of use, and those of jobs that are not played, are given to no job.
* **Speeds and costs** are those of the system's store of profiles, where it can be read, or those that the
  operator of a cluster publishes, of ``--profiles``, and else the shipped ones. On the GPUs that it has, a job has the speed at which it
  trains now, and so the end that ``dljob top`` shows. A type of job of which nothing is known has that speed, or a curve by lot.
* **Checkpoints** count as they do for the controller: a job keeps its GPUs where nothing saves its work.

CPU, memory, taints and volumes are not in these documents, so every node takes every pod.
"""

import math
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Protocol

import click

from dljob.cli.verbs.server.profiles import list_known, open_profiles
from dljob.client.backend import Backend, BackendError, JobList, Json
from dljob.client.local.local_backend import LocalBackend
from dljob.control.judging.checkpoints import is_declared, keeps_first
from dljob.control.situation import status_documents
from dljob.control.situation.status import Status
from dljob.core.documents import jobfile
from dljob.core.documents.jobnames import full_name
from dljob.core.model import (
    Cluster,
    Gpu,
    GpuRef,
    Job,
    JobState,
    Mechanism,
    Node,
    NodeName,
    Phase,
    Placement,
)
from dljob.core.placement.limits import NamespaceLimits
from dljob.core.predicting.predictor import Predictor
from dljob.core.profiles import Costs, JobType, Profile, Speed
from dljob.sim.beliefs import Beliefs, believe
from dljob.sim.engine.controlling.costs import DEFAULT_COSTS, costs_of_change
from dljob.sim.engine.settings import Setting
from dljob.sim.inputs.documents import Described
from dljob.sim.inputs.shipped import load_profiles, load_shipped
from dljob.sim.jobs.curves import Ground, Pool
from dljob.sim.jobs.noise import noise_of
from dljob.sim.jobs.scaling import load_standard_curves
from dljob.sim.jobs.workloads import (
    Standing,
    TracedJob,
    Workload,
    with_costs,
)
from dljob.store.store import Store
from dljob_wire.kinds import camel

NAME = "live"
"""The name of the workload among traces."""

LONGEST_SILENCE_S = 60.0
"""The longest time for which a silent training is assumed to continue at its latest speed."""


ALLOWED = frozenset(
    {
        *("policies", "profiles", "mechanism", "restart_cost", "period", "seed"),
        *("speed_error", "size_error", "sizes", "output", "jobs_out", "plot", "formats", "look"),
    }
)
"""The options of ``dljob simulate`` that apply to a live system."""


class Living(Protocol):
    """The answers of a live system: a :class:`~dljob.client.backend.Backend`, or those read at one moment."""

    @property
    def home(self) -> str:
        """The namespace whose jobs are named without it."""

    def list_jobs(self) -> JobList:
        """List all jobs."""

    def list_nodes(self) -> list[Json]:
        """List every GPU by its node."""

    def list_settings(self) -> list[Json]:
        """List how the controller is set."""


@dataclass(frozen=True, slots=True)
class Known:
    """The profiles of a system, and notes for the user about them."""

    profiles: Mapping[JobType, Profile]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Present:
    """A live system at this moment."""

    workload: Workload
    setting: Setting
    policy: str
    """The policy that the system is set to."""


@dataclass(frozen=True, slots=True)
class _Found:
    """A job that is to be played."""

    name: str
    """Its name in the verbs."""
    job: Job
    status: Status


def read(living: Living, known: Known, *, seed: int, now: float | None = None) -> Present:
    """
    Read a live system; raises :class:`~dljob.client.backend.BackendError` if it does not answer.

    ``now`` is the time of what it answers, if that is not asked for at this moment.
    """
    return _Reader(living, known, seed=seed, now=time.time() if now is None else now).make()


def read_known(living: Backend, *, state: Path | None, profiles: Path | None) -> Known:
    """Read the profiles of a system: those of its store, where that can be read, and those of a file."""
    known: dict[JobType, Profile] = {}
    notes: list[str] = []
    if isinstance(living, LocalBackend):
        try:
            with open_profiles(None, state) as store:
                known = read_store(store)
        except BackendError as error:
            notes.append(f"its profiles cannot be read ({error})")
    else:
        known = {profile.type: profile for profile in living.read_profiles()}
        if not known and profiles is None:
            notes.append(
                "the operator's profiles cannot be read: speeds are the shipped ones and those of now; give"
                " --profiles FILE, as `dljob profiles export` writes it"
            )
    if profiles is not None:
        known |= load_profiles(profiles)
    return Known(known, tuple(notes))


def read_store(store: Store) -> dict[JobType, Profile]:
    """Read the profiles of a store that is open."""
    return {profile.type: profile for profile in list_known(store).values()}


def check_usage(typed: Collection[str]) -> None:
    """Refuse options whose values come from the live system."""
    for name in sorted(set(typed) - ALLOWED):
        what = "TRACE" if name == "trace" else f"--{name.replace('_', '-')}"
        raise click.UsageError(f"--live plays the jobs of the live system; leave {what} out")


def adjust(setting: Setting, given: Mapping[str, Any], *, typed: Collection[str]) -> Setting:
    """Let the command line override the settings of the system."""
    cost, period = given["restart_cost"], given["period"]
    return replace(
        setting,
        mechanism=Mechanism(given["mechanism"]) if "mechanism" in typed else setting.mechanism,
        costs=setting.costs if cost is None else costs_of_change(cost),
        period_s=setting.period_s if period is None else period,
    )


def mislead(workload: Workload, given: Mapping[str, Any]) -> Workload:
    """Give policies the errors that the command line asks for."""
    beliefs = Beliefs(
        speed_error=given["speed_error"],
        size_error=given["size_error"],
        sizes_known=given["sizes"] == "known",
        seed=given["seed"],
    )
    return believe(workload, beliefs)


class _Reader:
    def __init__(self, living: Living, known: Known, *, seed: int, now: float) -> None:
        self._living, self._known = living, known
        self._seed = seed
        self._notes: list[str] = []
        self._now = now

    def make(self) -> Present:
        settings = self._read_settings()
        found = list(self._iter_jobs())
        nodes = self._read_nodes({each.name for each in found})
        seed = self._seed
        setting = Setting(
            nodes=nodes,
            mechanism=Mechanism(settings.get("mechanism", Mechanism.IN_PLACE)),
            costs=_read_costs(settings),
            seed=seed,
            limits=NamespaceLimits(
                max_gpus=settings.get("limits.maxGpus") or {},
                max_priority=settings.get("limits.maxPriority") or {},
            ),
        )
        workload = self._make_workload(found, setting)
        return Present(
            workload=workload, setting=setting, policy=str(settings.get("policy", "foresight"))
        )

    def _read_settings(self) -> Mapping[str, Any]:
        try:
            return {each["name"]: each["value"] for each in self._living.list_settings()}
        except BackendError as error:
            self._notes.append(f"its settings cannot be read ({error}); the defaults are taken")
            return {}

    # --- jobs

    def _iter_jobs(self) -> Iterator[_Found]:
        for document in self._living.list_jobs().items:
            status = status_documents.read_status(document.get("status") or {})
            cancelled = document.get("status", {}).get("cancelled")
            gone = cancelled or document["metadata"].get("deletionTimestamp")
            if gone or status.is_final or status.phase is Phase.SUSPENDED:
                continue
            name = full_name(document, self._living.home)
            try:
                job = jobfile.parse(document, require_template=True)
            except jobfile.JobFileError as error:
                self._notes.append(f"{name} is left out: {error.problems[0].message}")
                continue
            if not job.suspend:
                submitted = status_documents.read_time(
                    document["metadata"].get("creationTimestamp")
                )
                past = min(0.0, (submitted or self._now) - self._now)
                yield _Found(name, replace(job, submitted_at=past), status)

    def _make_workload(self, found: Sequence[_Found], setting: Setting) -> Workload:
        cluster = Cluster(setting.nodes)
        ground = Ground(
            gpu_types=tuple(dict.fromkeys(node.gpu_type for node in cluster.nodes)) or ("",),
            largest=max(cluster.totals.values(), default=1),
            node_gpus=max((len(node.gpus) for node in cluster.nodes), default=1),
        )
        known = self._known.profiles
        self._notes += self._known.notes
        table = {**load_shipped(), **known}
        for each in found:
            table[each.job.type] = _with_speed_now(table.get(each.job.type), each)
        table = {kind: profile for kind, profile in table.items() if profile.speeds}
        speeds = Described(
            table, Pool(load_standard_curves(), ground), ground=ground, seed=self._seed
        )
        ordered = sorted(found, key=lambda each: each.job.submitted_at)
        jobs = [replace(each, job=speeds.add(each.job)) for each in ordered]
        profiles = {kind: with_costs(each, known) for kind, each in speeds.profiles().items()}
        predictor = Predictor(
            profiles=profiles, costs=setting.costs, mechanism=setting.mechanism, cluster=cluster
        )
        refs = {GpuRef(node.name, gpu.index) for node in cluster.nodes for gpu in node.gpus}
        traced = tuple(self._trace(each, refs, predictor=predictor) for each in jobs)
        notes = (*self._notes, *speeds.notes())
        return Workload(NAME, traced, profiles, profiles, notes)

    def _trace(
        self, found: _Found, refs: AbstractSet[GpuRef], *, predictor: Predictor
    ) -> TracedJob:
        job, status = found.job, found.status
        done = self._count_done(status)
        total = status.iterations_total or float(job.training.iterations or 0) or math.inf
        state = JobState(
            job=job, order=0, iterations_done=done, iterations_total=total, service=status.service
        )
        shape = predictor.shape(state.least, predictor.best_type(job, state.least))
        # Of an unknown length this supposes something; of a known one it is what is left.
        left = predictor.training_time(state, shape, now=0.0) * predictor.speed(job, shape)
        standing = Standing(
            iterations_done=done,
            service=status.service,
            placement=_find_placement(status, refs),
            started_at=None if status.started_at is None else status.started_at - self._now,
            bound_to=() if job.checkpoint.shared else status.bound_to,
            batch_size=status.batch_size,
        )
        believed = None if math.isfinite(total) else math.inf
        return TracedJob(
            job,
            done + left,
            believed=believed,
            standing=standing,
            noise=noise_of(job),
            saves=not keeps_first(job, status, now=self._now),
            declares=is_declared(job.checkpoint),
        )

    def _count_done(self, status: Status) -> float:
        """Return how many iterations a job has done by now, if it went on since its last report."""
        if status.phase is not Phase.RUNNING or not status.iterated_at:
            return float(status.iteration)
        silent = min(max(0.0, self._now - status.iterated_at), LONGEST_SILENCE_S)
        done = status.iteration + status.speed * silent
        return min(done, status.iterations_total) if status.iterations_total else done

    # --- GPUs

    def _read_nodes(self, played: set[str]) -> tuple[Node, ...]:
        nodes = tuple(_read_node(each, played) for each in self._living.list_nodes())
        others = [gpu for node in nodes for gpu in node.gpus if gpu.unavailable_because]
        if others:
            self._notes.append(f"{len(others)} GPUs are out of use, or held by jobs not played")
        return nodes


def _read_costs(settings: Mapping[str, Any]) -> Costs:
    """Read the costs that are set; where none are, those of the simulator."""
    names = {each.name: f"costs.{camel(each.name)}" for each in fields(Costs)}
    costs = Costs(**{name: float(settings.get(path) or 0.0) for name, path in names.items()})
    return DEFAULT_COSTS if costs == Costs() else costs


def _read_node(document: Json, played: set[str]) -> Node:
    gpus = []
    for gpu in document["gpus"]:
        holder, reason = gpu.get("job"), gpu.get("reason", "")
        if holder is not None and holder not in played:
            reason = reason or f"held by {holder}, which is not played"
        elif holder is None and gpu.get("state") != "free":
            reason = reason or str(gpu.get("state"))
        gpus.append(Gpu(gpu["index"], gpu.get("uuid", ""), reason))
    return Node(NodeName(document["name"]), tuple(gpus), document.get("gpuType", ""))


def _with_speed_now(profile: Profile | None, found: _Found) -> Profile:
    """Return the profile of the job's type with its present speed, by which its expected end is shown too."""
    known, status = profile or Profile(found.job.type), found.status
    if status.placement is None or status.speed <= 0.0:
        return known
    return replace(known, speeds={**known.speeds, status.placement.shape: Speed(status.speed)})


def _find_placement(status: Status, refs: AbstractSet[GpuRef]) -> Placement | None:
    """Return where a job trains; nowhere while it gathers its gang, or if its GPUs are not visible."""
    placement = status.placement
    if placement is None or status.gang not in (0, placement.gpus):
        return None
    return placement if refs >= set(placement.refs()) else None
