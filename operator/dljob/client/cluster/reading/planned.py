"""
The operator's answers about the future, from the objects of the API server: ``submit --dry-run`` and ``what-if``.

The operator has no socket for users. So the documents become a scene and a snapshot by the operator's own code here, and
:mod:`dljob.control.deciding.futures` answers, as it does in ``dljob up``. The operator publishes its profiles and the state of
its policy. Its answers from SideCars are not visible.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from dljob.client.backend import BackendError, Created, Json, Plan, never
from dljob.client.cluster.reading.operators import Operator, read_pool, read_profiles
from dljob.client.cluster.reading.wording import describe_waiting
from dljob.control.deciding.futures import (
    PolicyError,
    joined,
    plan_documents,
    pose,
    read_question,
    show_futures,
)
from dljob.control.deciding.snapshots import take_snapshot
from dljob.control.gpus.marking import marked
from dljob.control.judging.conditions import NOT_KUEUE
from dljob.control.scheduling import Options
from dljob.control.settings import Settings, SettingsError, load_tree
from dljob.control.situation.ports import Entry
from dljob.control.situation.scene import Scene
from dljob.control.situation.status import Condition, ConditionType
from dljob.core.documents import jobfile
from dljob.core.documents.jobnames import full_name, manager_of
from dljob.core.model import Ceiling, GpuRef, Job, JobId, Node, Phase, Snapshot
from dljob.core.predicting.learning_curves import Forecast
from dljob.core.profiles import JobType, Profile, Speed
from dljob.known_policies import read_live_policy
from dljob.operator.jobs.entries import Jobs, Specs
from dljob.operator.kueue.quotas import read_demand
from dljob.operator.kueue.workloads import QUEUE_LABEL
from dljob.operator.nodes.nodes import read_node
from dljob_wire.messages import Shape

NEEDED: Final = ("policy", "mechanism", "seed")
GROUPS: Final = ("costs.", "limits.")
"""A decision depends on these settings, and on these groups of settings."""

KUEUE: Final = "kueue.enabled"

SET_ASIDE: Final = (
    (ConditionType.SET_ASIDE.value, "True"),
    (ConditionType.TEMPLATE_VALID.value, "False"),
)
"""With these conditions a job gets no new decision."""

UNKNOWN: Final = "it is not known when the jobs start, on which GPUs, and which other jobs change"
LATER: Final = (
    "plans and futures need the right to list all jobs and all nodes, which you lack; only the operator of the cluster"
    " decides, and dljob why NAME shows the decision about a job"
)
LIMITS: Final = (
    "the plan does not know whether nodes have the CPUs and the memory that pods request"
)
QUEUED: Final = (
    "the plan assumes that jobs in queues of Kueue keep the quota that they use now, and that Kueue admits new jobs"
    " in queues at once"
)
ASSUMED: Final = Condition(ConditionType.QUOTA_RESERVED, status=True, reason="", message="")
"""Of a job about which Kueue has not decided yet."""
UNLEARNED: Final = (
    "the plan takes speeds only from the jobs that run now, because the operator's profiles cannot be read; ask for"
    " the ClusterRole dljob-gpus-view, or wait until the operator has published them"
)


class CannotPlan(Exception):
    """The documents do not suffice; ``str()`` is the reason."""


def accept(job: Json, home: str) -> Json:
    """Show the only known effect on a job that the API server would take."""
    return {
        "job": full_name(job, home),
        "submitted": True,
        "step": "unknown",
        "message": "is accepted by the API server",
    }


def show(
    created: Created, jobs: Sequence[Json], *, open_planner: "Callable[[], Planner]", home: str
) -> Plan:
    """
    Plan for jobs that the API server would take, or show the reason why there is no plan.

    ``jobs`` are all that are visible. In ``home`` jobs have names without a namespace.
    """
    try:
        planner = open_planner()
        effects = planner.plan(created.items)
    except CannotPlan as error:
        accepted = [accept(item, home) for item in created.items]
        waiting = describe_waiting(jobs, time.time())
        return Plan(accepted, [*created.notices, str(error), waiting], tells_others=False)
    shown = [{**each, "job": each["job"].removeprefix(f"{home}/")} for each in effects]
    return Plan(shown, [*created.notices, *planner.limits])


class Planner:
    """The operator's knowledge at one moment, as far as the API server shows it."""

    def __init__(
        self,
        operator: Operator,
        jobs: Sequence[Json],
        *,
        nodes: Sequence[Json] | None,
        granted: Mapping[str, int],
        now: float,
        supposes: bool = False,
    ) -> None:
        """
        ``supposes``: settings that cannot be read are the default ones.

        ``jobs`` and ``nodes`` are all there are; ``nodes`` is ``None`` if the user may not see all of both.

        ``granted`` has the highest priorities that annotations of namespaces grant. Raises :class:`CannotPlan`.
        """
        if nodes is None:
            raise CannotPlan(LATER)
        settings: Sequence[Json] = ()
        lacks: tuple[str, ...] = ()
        try:
            settings = operator.settings()
        except BackendError as error:
            if not supposes:
                raise CannotPlan(f"{error}; {UNKNOWN}") from error
            lacks = (f"the operator's settings cannot be read ({error}); the defaults are taken",)
        loaded = _read_settings(settings)
        try:
            policy = read_live_policy(loaded.policy)
        except ValueError as error:
            raise CannotPlan(f"the policy of the operator cannot be read here: {error}") from error
        self._options = Options.of(loaded, policy)
        self._watched = frozenset(
            name for each in settings if each["name"] == "watched" for name in each["value"]
        )
        self._pool, self._told, self._now = read_pool(settings), operator.known_gpus(), now
        self._learned = operator.learned()
        self.limits = (LIMITS, *lacks) if self._learned else (LIMITS, UNLEARNED, *lacks)
        """The facts that the answers lack."""
        self._limits = self._options.limits.granting(granted)
        self._has_queues = any(each["name"] == KUEUE and each["value"] for each in settings)
        self._profiles = {profile.type: profile for profile in read_profiles(self._learned)}
        entries = self._read_entries(jobs)
        if self._has_queues and any(_iter_ceilings(entries.values())):
            self.limits = (*self.limits, QUEUED)
        self._scene = Scene(
            now=now,
            epoch=0,
            entries=entries,
            job_pods={},
            nodes={node.name: node for node in self._iter_nodes(nodes)},
            mechanism=self._options.mechanism,
        )

    def plan(self, newcomers: Sequence[Json]) -> list[Json]:
        """Show the effects of ``newcomers``, as the dry run of the API server returns them."""
        is_queued = any(QUEUE_LABEL in (each["metadata"].get("labels") or {}) for each in newcomers)
        if self._has_queues and is_queued and QUEUED not in self.limits:
            self.limits = (*self.limits, QUEUED)
        after = joined(self._scene, [self._read_newcomer(each) for each in newcomers])
        try:
            return plan_documents(
                self._take_snapshot(self._scene),
                self._take_snapshot(after),
                policy=self._options.policy,
                may_see=lambda _: True,
            )
        except PolicyError as error:
            raise CannotPlan(str(error)) from error

    def what_if(
        self, question: Json, *, seconds: float, is_gone: Callable[[], bool] = never
    ) -> Json:
        """Answer a question; raises :class:`WrongDocument` if it is wrong."""
        posed = pose(
            read_question(question),
            self._scene,
            snapshot=self._take_snapshot,
            policy=self._options.policy,
        )
        try:
            return show_futures(posed, seconds=seconds, limits=self.limits, is_gone=is_gone)
        except PolicyError as error:
            raise CannotPlan(str(error)) from error

    def _read_newcomer(self, document: Json) -> Job:
        name, namespace = document["metadata"]["name"], document["metadata"]["namespace"]
        if manager := manager_of(document):
            raise CannotPlan(f"{name} is managed by {manager}, so DLJob does not decide about it")
        if not self._is_ours(document):
            raise CannotPlan(
                f"the operator does not watch namespace {namespace} (setting watched), so it does"
                f" not decide about {name}"
            )
        try:
            return jobfile.parse(document, require_template=True)
        except jobfile.JobFileError as error:
            raise CannotPlan(f"{name}: {error.problems[0].message}") from error

    def _is_ours(self, document: Json) -> bool:
        return not self._watched or document["metadata"]["namespace"] in self._watched

    def _read_entries(self, documents: Sequence[Json]) -> dict[JobId, Entry]:
        reader = Jobs(Specs(), lambda: self._now)
        ours = filter(self._is_ours, documents)
        # The operator orders jobs by the second of their creation.
        ordered = sorted(ours, key=lambda each: str(each["metadata"]["creationTimestamp"]))
        entries = {}
        for each in ordered:
            conditions = (each.get("status") or {}).get("conditions", ())
            aside = [c for c in conditions if (c["type"], c["status"]) in SET_ASIDE]
            problem = str(aside[0].get("message") or aside[0]["type"]) if aside else ""
            entry = reader.read(each, problem=problem)
            entries[entry.job.id] = entry
        return entries

    def _iter_nodes(self, documents: Iterable[Json]) -> Iterator[Node]:
        for document in documents:
            node = read_node(document, self._pool)
            if node is not None:
                out = self._told.get(node.name, {}).get("out", {})
                yield marked(node, {GpuRef(node.name, int(gpu)): why for gpu, why in out.items()})

    def _take_snapshot(self, scene: Scene) -> Snapshot:
        entries = scene.entries.values()
        if self._has_queues:
            scene = replace(scene, ceilings=dict(_iter_ceilings(entries)))
        is_its = self._learned.get("policy") == self._options.policy.name
        return take_snapshot(
            scene,
            profiles=_read_profiles(entries) | self._profiles,
            costs=self._options.costs,
            forecasts=_read_forecasts(entries),
            seed=self._options.seed,
            limits=self._limits,
            # Other options of the same policy read it too.
            policy_state=self._learned.get("state") if is_its else None,
        )


def _iter_ceilings(entries: Iterable[Entry]) -> Iterator[tuple[JobId, Ceiling]]:
    """
    Yield the jobs in queues of Kueue that use quota, have none, or cannot change their number of GPUs.

    What Kueue admits next is not known.
    """
    for entry in entries:
        demand = read_demand(entry, queue=entry.job.labels.get(QUEUE_LABEL, ""))
        if not demand.queue:
            continue
        quota, most = entry.status.condition(ConditionType.QUOTA_RESERVED), demand.options[-1]
        if quota is None or quota.reason in NOT_KUEUE:
            quota = ASSUMED
        gpus = demand.decided or (most if quota.status else 0)
        if demand.decided or demand.is_whole or not quota.status:
            told = quota.reason, quota.message
            yield entry.job.id, Ceiling(min(gpus, most), *told, is_whole=demand.is_whole)


def _read_settings(documents: Sequence[Json]) -> Settings:
    """Read the settings that a decision depends on; an operator of another version may have further ones."""
    needed = {
        each["name"]: each["value"]
        for each in documents
        if each["name"] in NEEDED or each["name"].startswith(GROUPS)
    }
    try:
        return load_tree(Settings(), options=needed).settings
    except SettingsError as error:
        raise CannotPlan(f"the settings of the operator cannot be read here: {error}") from error


def _read_profiles(entries: Iterable[Entry]) -> dict[JobType, Profile]:
    """Make profiles from the present speeds of jobs."""
    speeds: dict[JobType, dict[Shape, Speed]] = {}
    for entry in entries:
        status = entry.status
        if status.phase is Phase.RUNNING and status.placement is not None and status.speed > 0.0:
            known = speeds.setdefault(entry.job.type, {})
            known[status.placement.shape] = Speed(status.speed)
    return {kind: Profile(kind, known) for kind, known in speeds.items()}


def _read_forecasts(entries: Iterable[Entry]) -> Mapping[JobId, Forecast]:
    """Read the lengths that the operator expects of jobs with a target."""
    return {
        entry.job.id: Forecast(total, low=total, high=total, confidence=1.0)
        for entry in entries
        if entry.job.training.target is not None and (total := entry.status.iterations_total)
    }
