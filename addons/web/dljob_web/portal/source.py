"""
A cluster, as the page asks it: the whole of it is read once for all users, and narrowed to what each may see.

The record is read from the operator's store, as ``dljob record --store`` does, or else from the API server.
"""

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any, Final, Generic, NamedTuple, TypeVar

from dljob.cli.output.streams import harmless_document
from dljob.cli.verbs.server.profiles import open_profiles
from dljob.client.backend import BackendError
from dljob.client.cluster.backend import WHAT_IF_S, ClusterBackend
from dljob.client.cluster.connecting import Connection
from dljob.client.cluster.reading.recorded import LACKS, UNTOLD
from dljob.control.recording.composing import compose, losses, make_memory, read_entries
from dljob.core.documents.jobnames import full_name, manager_of
from dljob.core.placement.limits import namespace_of
from dljob.core.recording.record import Gpu, Header, Record
from dljob.core.recording.record import Source as Origin
from dljob.kube.access import Access
from dljob.kube.documents import JsonObject
from dljob_web.answering import SourceError
from dljob_web.portal.narrowing import narrow_jobs, narrow_nodes, narrow_record
from dljob_web.portal.rights import Rights, explain_withheld
from dljob_web.portal.shared import Shared
from dljob_web.serving import PRESENT_S, RECORD_S
from dljob_web.sources import make_harmless, read_tail, show_plan, telling

log = logging.getLogger(__name__)

T = TypeVar("T")

NAMESPACE: Final = "metadata.namespace"
NAMELESS: Final = "is missing; name the namespace in which you would submit the job"

TOKENLESS: Final = (
    "a proxy has logged you in, so the page has no token of yours with which to ask the API server; use"
    " kubectl dljob logs, or kubectl dljob submit --dry-run"
)

CLUSTER: Final = "all namespaces"
"""The title of the page, where no namespaces are named."""


class Found(NamedTuple, Generic[T]):
    """A value that was read."""

    value: T
    namespaces: frozenset[str]
    """The namespaces of its jobs, which each request needs."""


class Whole:
    """The whole data, for narrowing; its methods block, and raise :class:`SourceError`."""

    def __init__(
        self,
        connection: Connection,
        store: str,
        namespaces: Sequence[str] = (),
        *,
        record_s: float = RECORD_S,
        present_s: float = PRESENT_S,
        what_if_s: float = WHAT_IF_S,
    ) -> None:
        """Without a ``store`` the API server's history is the record; without ``namespaces`` all of them are read."""
        self.connection = connection
        self._store = store
        self._namespaces = tuple(namespaces)
        self._decode = make_memory()
        self._what_if_s = what_if_s
        self._record: Shared[Found[Record]] = Shared(self._find_record, every_s=record_s)
        self._jobs: Shared[Found[list[JsonObject]]] = Shared(self._find_jobs, every_s=present_s)
        self._nodes: Shared[list[JsonObject]] = Shared(
            lambda: self._ask(lambda backend: backend.list_nodes()), every_s=present_s
        )

    def read_record(self) -> Record:
        return self._record.get().value

    def list_jobs(self) -> list[JsonObject]:
        return self._jobs.get().value

    def list_nodes(self) -> list[JsonObject]:
        return self._nodes.get()

    def list_namespaces(self) -> frozenset[str]:
        """List the namespaces of present and recorded jobs."""
        return self._jobs.get().namespaces | self._record.get().namespaces

    def explain(self, name: str, *, with_outages: bool) -> JsonObject:
        return self._ask(lambda backend: backend.explain(name, with_outages=with_outages))

    def plan(self, documents: Sequence[JsonObject], token: str) -> JsonObject:
        """Plan for jobs that the API server accepts from this user, who sees everything."""
        _insist_on_namespaces(documents)
        # By the user's own rights, with the checks and the defaults of the API server; nothing is stored.
        created = self._ask_as(token, lambda backend: backend.create_jobs(documents, dry_run=True))
        return show_plan(self._ask(lambda backend: backend.plan_for(created)))

    def what_if(self, question: Any, *, is_gone: Callable[[], bool]) -> JsonObject:
        """Play two futures of all jobs."""
        told = self._ask(
            lambda backend: backend.what_if(question, is_gone=is_gone, seconds=self._what_if_s)
        )
        answer: JsonObject = harmless_document(told)
        return answer

    def read_log(self, name: str, *, node: str, token: str) -> JsonObject:
        """Read the last lines of a job's output by the user's own rights."""
        return self._ask_as(token, lambda backend: read_tail(backend, name, node=node))

    def _find_jobs(self) -> Found[list[JsonObject]]:
        items = self._ask(lambda backend: backend.list_jobs().items)
        jobs = [job for job in items if not manager_of(job)]
        return Found(jobs, frozenset(namespace_of(full_name(job)) for job in jobs))

    def _find_record(self) -> Found[Record]:
        record = self._read_record()
        named = (namespace_of(line.job) for line in record.lines if not isinstance(line, Gpu))
        return Found(record, frozenset(named))

    def _read_record(self) -> Record:
        if not self._store:
            return self._ask_record(
                f"{LACKS}; with a store on a server (store.type in the chart) all of it is shown"
            )
        try:
            return self._read_store()
        except BackendError as error:
            # A page without the past is of more use than none while the store is away.
            log.warning("reads what happened from the API server instead: %s", error)
            return self._ask_record(f"the operator's store does not answer, and {LACKS}")

    def _ask_record(self, lack: str) -> Record:
        """Read what the API server knows; ``lack`` says what that is not, with a remedy that there is on the page."""
        found = self._ask(lambda backend: backend.read_record(0.0))
        missing = (lack if each == UNTOLD else each for each in found.header.missing)
        return replace(found, header=replace(found.header, missing=tuple(missing)))

    def _read_store(self) -> Record:
        with open_profiles(self._store, None) as store:
            kept = store.rows()
        documents = self.list_jobs() if any(losses(kept)) else []
        policy = str(self._ask(lambda backend: backend.about()).get("policy", ""))
        title = ", ".join(self._namespaces) or CLUSTER
        header = Header(source=Origin.CLUSTER, until=time.time(), policy=policy, title=title)
        return compose(kept, read_entries(documents), header=header, decode=self._decode)

    def _ask(self, act: Callable[[ClusterBackend], T]) -> T:
        return self._ask_by(self.connection.access, act)

    def _ask_as(self, token: str, act: Callable[[ClusterBackend], T]) -> T:
        """Ask the API server as the user of a token."""
        if not token:
            # Never with the rights of this server instead.
            raise SourceError(TOKENLESS, status=403)
        return self._ask_by(self.connection.access.for_user(token), act)

    def _ask_by(self, access: Access, act: Callable[[ClusterBackend], T]) -> T:
        connection = replace(self.connection, access=access)
        # A backend for each question, because it remembers how the operator is set.
        backend = ClusterBackend(
            connection, everywhere=True, namespaces=self._namespaces, notice=log.info
        )
        with telling(), closing(backend):
            return act(backend)


def _insist_on_namespaces(documents: Sequence[JsonObject]) -> None:
    """Refuse jobs without a namespace: the default one would be that of this server."""
    problems = [
        {"document": number, "path": NAMESPACE, "message": f"{NAMESPACE}: {NAMELESS}"}
        for number, document in enumerate(documents)
        if isinstance(document.get("metadata"), dict) and not document["metadata"].get("namespace")
    ]
    if problems:
        raise SourceError(str(problems[0]["message"]), status=400, problems=problems)


class Narrowed:
    """The part of it that users of the same rights may see: a :class:`dljob_web.serving.Source`."""

    def __init__(self, whole: Whole, rights: Rights) -> None:
        self._whole = whole
        self._rights = rights

    def read_record(self, since: float) -> Record:  # noqa: ARG002 - the page shows all of it
        return narrow_record(self._whole.read_record(), self._rights)

    def list_jobs(self) -> list[JsonObject]:
        return make_harmless(narrow_jobs(self._whole.list_jobs(), self._rights))

    def explain(self, name: str) -> JsonObject:
        self._insist_on_sight(name)
        # Outages are of all nodes, and their reasons may name any job.
        told = self._whole.explain(name, with_outages=self._rights.has_all)
        answer: JsonObject = harmless_document(told)
        return answer

    def list_nodes(self) -> list[JsonObject]:
        return make_harmless(narrow_nodes(self._whole.list_nodes(), self._rights))

    def read_log(self, name: str, *, node: str, token: str) -> JsonObject:
        self._insist_on_sight(name)
        return self._whole.read_log(name, node=node, token=token)

    def _insist_on_sight(self, name: str) -> None:
        if not self._rights.shows(name):
            # As for one that is not there, so that names of other jobs cannot be tried.
            raise SourceError(f"{name}: there is no such job that you may see", status=404)

    @property
    def withheld(self) -> str:
        return explain_withheld(self._rights)

    def plan(self, documents: list[JsonObject], token: str) -> JsonObject:
        if self.withheld:
            raise SourceError(self.withheld, status=403)
        return self._whole.plan(documents, token)

    def what_if(self, question: Any, *, is_gone: Callable[[], bool]) -> JsonObject:
        if self.withheld:
            raise SourceError(self.withheld, status=403)
        return self._whole.what_if(question, is_gone=is_gone)
