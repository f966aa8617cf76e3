"""
A Kubernetes cluster, as the verbs ask it: everything through its API server, with the user's rights.

There is no other server: all facts for people are in objects that Kubernetes' own rights guard.
The operator decides, and writes its decisions with their reasons into the status of a job and into Events.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, TypeVar

from dljob.client.backend import (
    BackendError,
    Complaint,
    Conflict,
    Created,
    JobList,
    Json,
    Keeping,
    LogLine,
    LogQuery,
    NotThere,
    Plan,
    name_briefly,
    name_fully,
    never,
    warn,
)
from dljob.client.changing import retry_overtaken
from dljob.client.cluster import podlogs, submitting
from dljob.client.cluster.asking import Asker, list_in
from dljob.client.cluster.connecting import Connection
from dljob.client.cluster.reading import past
from dljob.client.cluster.reading.operators import Operator
from dljob.client.cluster.reading.wording import assumptions, outages, sentence
from dljob.client.cluster.refusals import FORBIDDEN
from dljob.client.jobviews import JobView
from dljob.core.documents.jobnames import full_name, manager_of
from dljob.kube import names
from dljob.kube.client import GONE, ApiServer, Rejected, Unreachable
from dljob.kube.resources import DLJOBS, EVENTS, NAMESPACES, NODES

if TYPE_CHECKING:
    from dljob.client.cluster.reading.planned import Planner
    from dljob.core.recording.record import Record

T = TypeVar("T")

Said = Callable[[str], dict[str, str]]
"""Reads the entries of a node's annotation by GPU number."""
Change = Callable[[Said], Mapping[str, Mapping[str, str]]]
"""Returns the new contents of the annotations."""

RETRY_S: Final = 1.0
"""The pause between watches, also while the API server does not answer."""
PATIENCE_S: Final = 30.0
"""Refusals count as final after this time, because a starting server refuses requests that it later grants."""
WHAT_IF_S = 40.0
"""The time limit of the two futures of a question together."""


class ClusterBackend:
    look_seconds = 5.0
    removes_checkpoints = False

    def __init__(
        self,
        connection: Connection,
        everywhere: bool = False,  # noqa: FBT001, FBT002 - as the option has it
        *,
        namespaces: Sequence[str] = (),
        notice: Callable[[str], None] = warn,
    ) -> None:
        """``everywhere``: about all namespaces, or about these ``namespaces``, where they are named."""
        self._asker = Asker(connection.access)
        self._connection = connection
        self._everywhere = everywhere
        self._listed = "" if everywhere else connection.namespace
        self._among = namespaces
        self._places = namespaces or (self._listed,)
        self._notice = notice
        self._noticed: set[str] = set()
        self._operator = Operator(self._asker)

    @property
    def home(self) -> str:
        return self._listed

    def open_another(self) -> "ClusterBackend":
        return ClusterBackend(self._connection, self._everywhere, notice=self._notice)

    def close(self) -> None:
        self._asker.close()

    def about(self) -> Json:
        return self._operator.about()

    # --- jobs

    def list_jobs(self, selector: str = "") -> JobList:
        listing = self._asker.ask(lambda api: list_in(api, DLJOBS, self._places, labels=selector))
        return JobList([_shown(item) for item in listing.items], listing.version)

    def watch_jobs(self, selector: str, version: str) -> Iterator[JobList]:
        def watch(api: ApiServer) -> AsyncIterator[JobList]:
            return _watch(api, self._listed, labels=selector, version=version)

        for news in self._asker.iterate(watch):
            yield news._replace(items=[_shown(item) for item in news.items])

    def get_job(self, name: str) -> Json:
        namespace, own = self._locate(name)
        return _shown(self._asker.ask(lambda api: api.get(DLJOBS, own, namespace)))

    def create_jobs(self, documents: Sequence[Json], *, dry_run: bool = False) -> Created:
        prepared = submitting.prepare(documents, self._connection)
        with self._asker.translating():
            made = self._asker.ask_plainly(
                lambda api: submitting.create(api, prepared, dry_run=dry_run)
            )
        return Created([_shown(item) for item in made], submitting.find_notices(documents))

    def replace_job(self, document: Mapping[str, Any], *, dry_run: bool = False) -> Json:
        namespace = document["metadata"]["namespace"]
        return _shown(
            self._asker.ask(
                lambda api: api.replace(DLJOBS, document, namespace, dry_run=dry_run, strict=True)
            )
        )

    def delete_job(self, name: str, *, checkpoints: Keeping = Keeping.USUAL) -> Json:  # noqa: ARG002 - volumes outlive jobs
        document = self.get_job(name)
        metadata = document["metadata"]
        self._asker.ask(
            lambda api: api.delete(
                DLJOBS, metadata["name"], metadata["namespace"], uid=metadata["uid"]
            )
        )
        return document

    def preview(self, documents: Sequence[Json]) -> Plan:
        return self.plan_for(self.create_jobs(documents, dry_run=True))

    def plan_for(self, created: Created) -> Plan:
        """Plan for jobs that the API server has accepted in a dry run."""
        from dljob.client.cluster.reading import planned  # noqa: PLC0415 - no other verb needs it

        jobs, open_planner = self._read_present()
        return planned.show(created, jobs, open_planner=open_planner, home=self.home)

    def what_if(
        self, question: Json, *, is_gone: Callable[[], bool] = never, seconds: float = WHAT_IF_S
    ) -> Json:
        from dljob.client.cluster.reading.planned import CannotPlan  # noqa: PLC0415 - as above
        from dljob_wire.problems import WrongDocument  # noqa: PLC0415 - as above

        _, open_planner = self._read_present(supposes=True)
        here = self._connection.namespace
        full = name_fully(question, lambda name: name if "/" in name else f"{here}/{name}")
        try:
            answer = open_planner().what_if(full, seconds=seconds, is_gone=is_gone)
        except WrongDocument as error:
            [problem] = error.problems
            raise BackendError(
                problem.line(), [Complaint(0, problem.line(), problem.path)]
            ) from error
        except CannotPlan as error:
            raise BackendError(str(error)) from error
        return name_briefly(answer, self.home)

    def _read_present(
        self, *, supposes: bool = False
    ) -> "tuple[list[Json], Callable[[], Planner]]":
        """Read the visible jobs, and what the operator decides with."""
        from dljob.client.cluster.reading.planned import UNKNOWN, Planner  # noqa: PLC0415 - as above

        jobs, sees_all_jobs = self._find_holders(f"so {UNKNOWN}")
        nodes = self._read_nodes(f"so {UNKNOWN}") if sees_all_jobs else None
        granted = self._read_grants() if nodes is not None else {}
        now = time.time()
        return jobs, lambda: Planner(
            self._operator, jobs, nodes=nodes, granted=granted, now=now, supposes=supposes
        )

    def explain(self, name: str, *, with_outages: bool = True) -> Json:
        """``with_outages``: also say why GPUs of all nodes are out of service, where the job waits for that reason."""
        job = self.get_job(name)
        called = full_name(job, self.home)
        remarks = assumptions(job)
        if with_outages:
            remarks += outages(job, self._operator.known_gpus)
        told = {"message": sentence(job, time.time()), "assumptions": remarks}
        return {"name": called, **told, "job": job}

    # --- what happened

    def list_history(self, name: str, limit: int) -> list[Json]:
        job = self.get_job(name)
        called = full_name(job, self.home)
        try:
            events = self._events_of(job)
        except BackendError as error:
            self._tell_once(f"{error}; other events of {called} are left out")
            events = []
        return past.list_history(job.get("status") or {}, events, job=called)[-limit:]

    def list_events(self, name: str = "", since: int = 0) -> list[Json]:
        if name:
            return self._events_of(self.get_job(name))
        selector = "involvedObject.kind=DLJob"
        listing = self._asker.ask(lambda api: api.list(EVENTS, self._listed, fields=selector))
        return past.list_events(listing.items, "")[since:]

    def _events_of(self, job: Json) -> list[Json]:
        metadata = job["metadata"]
        selector = f"involvedObject.uid={metadata['uid']}"
        listing = self._asker.ask(
            lambda api: api.list(EVENTS, metadata["namespace"], fields=selector)
        )
        return past.list_events(listing.items, full_name(job, self.home))

    def read_record(self, since: float) -> "Record":
        from dljob.client.cluster.reading import recorded  # noqa: PLC0415 - no other verb needs it
        from dljob.core.recording.record import Header, Source  # noqa: PLC0415 - as below

        jobs = _ours(self.list_jobs().items)
        selector = "involvedObject.kind=DLJob"
        listing = self._unless_forbidden(
            lambda: self._asker.ask_plainly(
                lambda api: list_in(api, EVENTS, self._places, fields=selector)
            ),
            "the Events are left out",
        )
        header = Header(
            source=Source.CLUSTER,
            since=since,
            until=time.time(),
            policy=str(self.about().get("policy", "")),
            title=self._listed or ", ".join(self._among) or "all namespaces",
        )
        events = recorded.events_by_job(jobs, listing.items if listing is not None else ())
        return recorded.compose(jobs, events, nodes=self.list_nodes(), header=header)

    # --- GPUs

    def list_nodes(self) -> list[Json]:
        from dljob.client.cluster.reading import gpus  # noqa: PLC0415 - takes longer to load than to get jobs

        jobs, sees_all_jobs = self._find_holders()
        holdings = gpus.find_holdings(jobs, self.home)
        nodes = self._read_nodes("only GPUs of jobs that you may see are shown")
        if nodes is None:
            return gpus.list_held(holdings)
        pool = self._operator.pool()
        told = self._operator.known_gpus()
        return gpus.list_gpus(nodes, holdings, pool=pool, known=told, sees_all_jobs=sees_all_jobs)

    def _read_nodes(self, then: str) -> list[Json] | None:
        """List the objects of all nodes; ``None`` if that is forbidden, and ``then`` is the consequence."""
        found = self._unless_forbidden(
            lambda: self._asker.ask_plainly(lambda api: api.list(NODES)), then
        )
        return None if found is None else found.items

    def _read_grants(self) -> dict[str, int]:
        """Return the highest priorities that annotations of namespaces grant."""
        found = self._unless_forbidden(
            lambda: self._asker.ask_plainly(lambda api: api.list(NAMESPACES)),
            "so the plan knows no priority that the annotation of a namespace grants",
        )
        return names.priorities_of(found.items if found is not None else ())

    def _find_holders(self, then: str = "") -> tuple[list[Json], bool]:
        """List all visible jobs; return whether these are all jobs."""
        home = self._connection.namespace
        everywhere = self._unless_forbidden(
            lambda: self._asker.ask_plainly(lambda api: list_in(api, DLJOBS, self._among or ("",))),
            then or f"only jobs in namespace {home} are shown",
        )
        if everywhere is not None:
            return _ours(everywhere.items), True
        return _ours(self._asker.ask(lambda api: api.list(DLJOBS, home)).items), False

    def cordon(self, node: str, gpu: int, reason: str) -> Json:
        from dljob.operator.nodes.nodes import CORDONS  # noqa: PLC0415 - as above

        self._change_gpu(
            node, gpu, change=lambda said: {CORDONS: said(CORDONS) | {str(gpu): reason}}
        )
        return {"node": node, "gpu": gpu, "reason": reason}

    def uncordon(self, node: str, gpu: int) -> Json:
        """Remove a cordon, and mark a known fault as mended."""
        from dljob.operator.nodes.nodes import CORDONS, PARDONS  # noqa: PLC0415 - as above

        number, told = str(gpu), self._operator.known_gpus().get(node, {})
        fault = told.get("faults", {}).get(number, "")
        was_cordoned = False

        def change(said: Said) -> Mapping[str, Mapping[str, str]]:
            nonlocal was_cordoned
            cordons = said(CORDONS)
            was_cordoned = number in cordons
            changed = {CORDONS: {key: why for key, why in cordons.items() if key != number}}
            # A new value each time, so that later faults count again.
            word = datetime.now(UTC).isoformat(timespec="microseconds")
            return changed | ({PARDONS: said(PARDONS) | {number: word}} if fault else {})

        self._change_gpu(node, gpu, change=change)
        other = told.get("out", {}).get(number)
        if other and not fault and not was_cordoned:
            self._tell_once(
                f"{node}/{gpu} stays out of service, as the operator reported last: {other}"
            )
        return {"node": node, "gpu": gpu, "wasCordoned": was_cordoned or bool(fault)}

    def _change_gpu(self, node: str, gpu: int, *, change: Change) -> None:
        """Change the annotations of a node about its GPUs, which other programs change as well."""
        from dljob.client.cluster.reading import gpus  # noqa: PLC0415 - as above

        def attempt() -> None:
            try:
                document = self._asker.ask(lambda api: api.get(NODES, node))
            except NotThere as error:
                raise NotThere(
                    f"{node}: there is no such node; dljob gpu list shows all nodes"
                ) from error
            gpus.insist_on_gpu(document, gpu, pool=self._operator.pool())
            wanted = change(lambda name: gpus.read_numbered(document, name))
            if any(gpus.read_numbered(document, name) != said for name, said in wanted.items()):
                written = gpus.write_numbered(document, wanted)
                self._asker.ask(lambda api: api.merge(NODES, node, changes=written))

        retry_overtaken(attempt)

    def list_holds(self) -> dict[str, str]:
        home = self._operator.namespace
        found = self._asker.ask(lambda api: api.list(NAMESPACES)).items
        return {name: why for each in found for name, why in names.holds_of(each, home).items()}

    def hold(self, namespace: str, reason: str) -> None:
        self._annotate(namespace, reason)

    def release(self, namespace: str) -> bool:
        was_held = namespace in self.list_holds()
        self._annotate(namespace, None)
        return was_held

    def _annotate(self, namespace: str, hold: str | None) -> None:
        is_all = namespace == names.ALL
        name = self._operator.namespace if is_all else namespace
        changes = {"metadata": {"annotations": {names.HOLD_ALL if is_all else names.HOLD: hold}}}
        try:
            self._asker.ask(lambda api: api.merge(NAMESPACES, name, changes=changes))
        except NotThere as error:
            raise NotThere(f"{name}: there is no such namespace") from error

    def list_settings(self) -> list[Json]:
        return self._operator.settings()

    # --- where it trains

    def list_log_nodes(self, name: str) -> list[str]:
        document = self.get_job(name)
        pods = self._asker.ask(lambda api: podlogs.list_pods(api, _log_of(document)))
        slices = JobView.of(document, self.home).slices
        return sorted({*map(podlogs.node_of, pods), *(part.node for part in slices)} - {""})

    def read_logs(self, name: str, query: LogQuery) -> Iterator[LogLine]:
        job = _log_of(self.get_job(name))
        nodes = self.list_log_nodes(name)
        if query.node and query.node not in nodes:
            known = ", ".join(nodes) or "none yet"
            raise NotThere(f"{name} has no log of {query.node}; nodes with one: {known}")
        if query.follow:
            return self._asker.iterate(
                lambda api: podlogs.follow(api, job, query, notice=self._tell_once)
            )
        return self._asker.iterate(lambda api: podlogs.read(api, job, query))

    def execute(self, name: str, command: Sequence[str], *, node: str = "") -> int:
        from dljob.client.cluster import kubectl  # noqa: PLC0415 - no other verb needs it

        job = self.get_job(name)
        view = JobView.of(job, self.home)
        if not view.slices:
            raise Conflict(f"{name} has no GPUs now ({view.phase}); try again when it is Running")
        chosen = [part for part in view.slices if node in ("", part.node)]
        if not chosen:
            nodes = ", ".join(part.node for part in view.slices)
            raise NotThere(f"{name} has no GPUs on {node}; name one of {nodes}")
        pod = _pod_on(job, chosen[0].node)
        numbers = ",".join(map(str, chosen[0].gpus))
        seen = [
            "CUDA_DEVICE_ORDER=PCI_BUS_ID",
            f"CUDA_VISIBLE_DEVICES={numbers}",
            f"NVIDIA_VISIBLE_DEVICES={numbers}",
        ]
        return kubectl.execute(
            self._connection,
            job["metadata"]["namespace"],
            pod=pod,
            command=["env", *seen, *command],
        )

    # --- what they share

    def _locate(self, name: str) -> tuple[str, str]:
        """Split a name into namespace and name."""
        named, slash, own = name.rpartition("/")
        namespace = named if slash else self._connection.namespace
        if not (submitting.is_path_part(namespace) and submitting.is_path_part(own)):
            # An empty name, "." and ".." would ask for other objects, such as all jobs.
            raise NotThere(f"{name}: there is no such job; dljob get lists the jobs")
        return namespace, own

    def _unless_forbidden(self, look: Callable[[], T], then: str) -> T | None:
        """Read something that not every user may see; return a default if it is forbidden."""
        with self._asker.translating():
            try:
                return look()
            except Rejected as error:
                if error.status != FORBIDDEN:
                    raise
                self._tell_once(f"{self._asker.explain(error)}; {then}")
                return None

    def _tell_once(self, notice: str) -> None:
        if notice not in self._noticed:
            self._noticed.add(notice)
            self._notice(f"note: {notice}")


def _ours(documents: Sequence[Json]) -> list[Json]:
    """Leave out jobs of other controllers; their statuses may name GPUs of another cluster."""
    return [document for document in documents if not manager_of(document)]


def _shown(document: Json) -> Json:
    """Leave out the managed fields, which users do not need."""
    document["metadata"].pop("managedFields", None)
    return document


def _log_of(document: Json) -> podlogs.Job:
    return podlogs.Job(document["metadata"]["namespace"], document["metadata"]["name"])


def _pod_on(job: Json, node: str) -> str:
    from dljob.operator.podspecs.building import trainer_name  # noqa: PLC0415 - takes long to load

    metadata = job["metadata"]
    bookings = (job.get("status") or {}).get("pods", ())
    serials = [booking["serial"] for booking in bookings if booking["node"] == node]
    if not serials:
        called = f"{metadata['namespace']}/{metadata['name']}"
        raise Conflict(f"{called} has no pod on {node} yet; try again when it is Running")
    return trainer_name(metadata["name"], max(serials))


async def _watch(
    api: ApiServer, namespace: str, *, labels: str, version: str
) -> AsyncIterator[JobList]:
    """Yield the jobs that change after this version, across watches that the API server cuts; no jobs: only a version."""
    well_at = time.monotonic()
    while True:  # noqa: PLR1702 - one loop over outages, and one over events
        began = time.monotonic()
        try:
            if not version:
                listing = await api.list(DLJOBS, namespace, labels=labels)
                version = listing.version
                yield JobList(listing.items, version)
            # Closed at once, not when it is collected: then the event loop may be closed.
            async with aclosing(
                api.watch(DLJOBS, namespace, version=version, labels=labels)
            ) as events:
                async for event in events:
                    well_at = time.monotonic()
                    kind, found = event["type"], event["object"]
                    # Before the reader gets the event: a watch that is cut goes on after it, however
                    # long the reader takes. Where no job changes, bookmarks keep the version young.
                    version = found["metadata"]["resourceVersion"]
                    items = [] if kind in ("BOOKMARK", "DELETED") else [found]
                    removed = (full_name(found, namespace),) if kind == "DELETED" else ()
                    yield JobList(items, version, removed, complete=False)
            well_at = time.monotonic()
        except Unreachable:
            well_at = time.monotonic()
        except Rejected as error:
            now = time.monotonic()
            # If the last request was granted, the refusal is new and may pass.
            well_at = now if now > began + PATIENCE_S else well_at
            if error.status == GONE:
                version = ""  # The version is too old for the server; list everything again.
            elif now > well_at + PATIENCE_S:
                raise
        await asyncio.sleep(RETRY_S)
