"""
The operator's decision about jobs that are not submitted yet, from what the API server shows: ``submit --dry-run``.

The documents become a scene and a snapshot by the operator's own code, and :mod:`dljob.control.reporting.plans` makes the plan.
The operator publishes its profiles and the state of its policy. Its answers from SideCars are not visible.

:class:`Planner` is pure.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from dljob.client.backend import BackendError, Created, Json, Plan
from dljob.client.cluster.reading.operators import Operator, read_pool, read_profiles
from dljob.client.cluster.reading.wording import describe_waiting
from dljob.control.deciding.futures import joined
from dljob.control.deciding.snapshots import take_snapshot
from dljob.control.gpus.marking import marked
from dljob.control.reporting.plans import PolicyError, plan_documents
from dljob.control.scheduling import Options
from dljob.control.settings import Settings, SettingsError, load_tree
from dljob.control.situation.ports import Entry
from dljob.control.situation.scene import Scene
from dljob.control.situation.status import ConditionType
from dljob.core.contract import Policy
from dljob.core.documents import jobfile
from dljob.core.documents.jobnames import full_name, manager_of
from dljob.core.model import GpuRef, Job, JobId, Node, Phase, Snapshot
from dljob.core.predicting.learning_curves import Forecast
from dljob.core.profiles import JobType, Profile, Speed
from dljob.known_policies import read_live_policy
from dljob.operator.jobs.entries import Jobs, Specs
from dljob.operator.nodes.nodes import read_node
from dljob_wire.messages import Shape

NEEDED: Final = ("policy", "mechanism", "seed")
GROUPS: Final = ("costs.", "limits.")
"""A decision depends on these settings, and on these groups of settings."""

SET_ASIDE: Final = (
    (ConditionType.SET_ASIDE.value, "True"),
    (ConditionType.TEMPLATE_VALID.value, "False"),
)
"""With these conditions a job gets no new decision."""

UNKNOWN: Final = "it is not known when the jobs start, on which GPUs, and which other jobs change"
LATER: Final = "only the operator of the cluster decides, after the job is submitted; then dljob why NAME shows the decision"
LIMITS: Final = (
    "the plan does not know whether nodes have the CPUs and the memory that pods request"
)
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


def plan(
    newcomers: Sequence[Json],
    jobs: Sequence[Json],
    *,
    nodes: Sequence[Json] | None,
    granted: Mapping[str, int],
    operator: Operator,
    now: float,
) -> list[Json]:
    """
    Show the effects of ``newcomers``, as the dry run of the API server returns them.

    ``jobs`` and ``nodes`` are all there are; ``nodes`` is ``None`` if the user may not see all of both. Raises
    :class:`CannotPlan`.
    """
    if nodes is None:
        raise CannotPlan(LATER)
    try:
        settings = operator.settings()
    except BackendError as error:
        raise CannotPlan(f"{error}; {UNKNOWN}") from error
    told, learned = operator.known_gpus(), operator.learned()
    planner = Planner(settings, told=told, learned=learned, granted=granted, now=now)
    return planner.plan(newcomers, jobs, nodes=nodes)


def show(
    created: Created,
    jobs: Sequence[Json],
    *,
    plan: Callable[[], list[Json]],
    learned: Json,
    now: float,
    home: str = "",
) -> Plan:
    """
    Show a plan, or the reason why there is none; in ``home`` jobs have names without a namespace.

    ``learned`` is the published knowledge of the operator, if the plan had it.
    """
    try:
        effects = plan()
    except CannotPlan as error:
        accepted = [accept(item, home) for item in created.items]
        notices = [*created.notices, str(error), describe_waiting(jobs, now)]
        return Plan(accepted, notices, tells_others=False)
    near = f"{home}/"
    shown = [{**each, "job": each["job"].removeprefix(near)} for each in effects]
    limits = (LIMITS,) if learned else (LIMITS, UNLEARNED)
    return Plan(shown, [*created.notices, *limits])


class Planner:
    """What decides about jobs at one moment."""

    def __init__(
        self,
        settings: Sequence[Json],
        *,
        told: Mapping[str, Any],
        learned: Mapping[str, Any],
        granted: Mapping[str, int],
        now: float,
    ) -> None:
        """
        The operator publishes the facts about GPUs in ``told``, and in ``learned`` its profiles and the policy's state.

        ``granted`` has the highest priorities that annotations of namespaces grant.
        """
        loaded = _read_settings(settings)
        self._options = Options.of(loaded, _read_policy(loaded.policy))
        self._watched = frozenset(
            name for each in settings if each["name"] == "watched" for name in each["value"]
        )
        self._pool, self._told, self._now = read_pool(settings), told, now
        self._learned = learned
        self._limits = self._options.limits.granting(granted)
        self._profiles = {profile.type: profile for profile in read_profiles(learned)}

    def plan(
        self, newcomers: Sequence[Json], jobs: Sequence[Json], *, nodes: Sequence[Json]
    ) -> list[Json]:
        scene = Scene(
            now=self._now,
            epoch=0,
            entries=self._read_entries(jobs),
            job_pods={},
            nodes={node.name: node for node in self._iter_nodes(nodes)},
            mechanism=self._options.mechanism,
        )
        after = joined(scene, [self._read_newcomer(each) for each in newcomers])
        try:
            return plan_documents(
                self._take_snapshot(scene),
                self._take_snapshot(after),
                policy=self._options.policy,
                may_see=lambda _: True,
            )
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
        entries = (reader.read(each, problem=_why_set_aside(each)) for each in ordered)
        return {entry.job.id: entry for entry in entries}

    def _iter_nodes(self, documents: Iterable[Json]) -> Iterator[Node]:
        for document in documents:
            node = read_node(document, self._pool)
            if node is not None:
                out = self._told.get(node.name, {}).get("out", {})
                yield marked(node, {GpuRef(node.name, int(gpu)): why for gpu, why in out.items()})

    def _take_snapshot(self, scene: Scene) -> Snapshot:
        entries = scene.entries.values()
        return take_snapshot(
            scene,
            profiles=_read_profiles(entries) | self._profiles,
            costs=self._options.costs,
            forecasts=_read_forecasts(entries),
            seed=self._options.seed,
            limits=self._limits,
            policy_state=self._read_policy_state(),
        )

    def _read_policy_state(self) -> object:
        """Return the state of the policy; other options of the same policy read it too."""
        is_its = self._learned.get("policy") == self._options.policy.name
        return self._learned.get("state") if is_its else None


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


def _read_policy(name: str) -> Policy:
    try:
        return read_live_policy(name)
    except ValueError as error:
        raise CannotPlan(f"the policy of the operator cannot be read here: {error}") from error


def _why_set_aside(document: Json) -> str:
    """Return the reason why the operator decides nothing about a job."""
    for condition in (document.get("status") or {}).get("conditions", ()):
        if (condition["type"], condition["status"]) in SET_ASIDE:
            return str(condition.get("message") or condition["type"])
    return ""


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
