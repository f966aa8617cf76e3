"""
Mirrors of the watched objects, including our own latest writes (law 2).

The resource version decides which document is newer, so the answer to a write and the event of a watch can arrive in
any order.

Most of each object is never read, and thousands are kept, so the mirrors drop parts of them. A pod of a job can be
trimmed most, because the job holds the same and is kept whole. The lists name the fields to drop, so that code may begin
to read another field without a change here.
"""

import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Final, Generic, Protocol, TypeVar, cast

from dljob.core.documents.jobnames import manager_of
from dljob.kube import names
from dljob.kube.constraints.other_pods import OtherObjects
from dljob.kube.documents import Json, NodeDocument, PodDocument
from dljob.kube.names import Name

D = TypeVar("D", bound=Json)
"""The type of a kind's documents."""

_OUR_OWN = frozenset({"resourceVersion", "finalizers"})
MOST_GONE = 10_000
"""The number of remembered deleted objects; an older event for one may still arrive."""

_BOOKS: Final = frozenset({"managedFields"})
_VERSION: Final = frozenset({"resourceVersion"})
_HEARTBEAT: Final = frozenset({"lastHeartbeatTime"})
_OF_NODE: Final = frozenset({"daemonEndpoints", "images", "volumesAttached", "volumesInUse"})
_OF_POD: Final = frozenset({"affinity", "imagePullSecrets", "tolerations", "volumes"})
_OF_CONTAINER: Final = frozenset(
    {
        "args",
        "command",
        "env",
        "envFrom",
        "lifecycle",
        "livenessProbe",
        "readinessProbe",
        "startupProbe",
        "terminationMessagePath",
        "terminationMessagePolicy",
        "volumeMounts",
    }
)

LONGEST_SHARED: Final = 64
"""Longer texts, such as scripts and messages, seldom occur twice."""


def _is_more_than_ours(known: Json, shown: Json) -> bool:
    """Return true if a job has changes beyond our own: a status in one epoch and our finalizer.

    A watch often delivers our own write before the answer arrives. A user's write changes the
    metadata: a new spec raises the generation.
    """
    if _written_by_users(known) != _written_by_users(shown):
        return True
    before = epoch_of(known)
    return before > 0 and epoch_of(shown) != before


def _written_by_users(job: Json) -> tuple[Json, list[str]]:
    metadata = job["metadata"]
    finalizers = metadata.get("finalizers") or ()
    return (
        {name: each for name, each in metadata.items() if name not in _OUR_OWN},
        [each for each in finalizers if each != names.FINALIZER],
    )


def version_of(document: Json) -> int:
    return int(document["metadata"]["resourceVersion"])


def epoch_of(document: Json) -> int:
    """Return the epoch of the status; 0 without one."""
    epoch: int = (document.get("status") or {}).get("epoch", 0)
    return epoch


def trim(document: Json) -> dict[str, Any]:
    """Drop the managed fields, which take a third of an object."""
    return _with_shared_texts({**document, "metadata": _without(document["metadata"], _BOOKS)})


def trim_pod(pod: PodDocument) -> dict[str, Any]:
    """Drop the parts of a pod that its job holds as well."""
    spec = _without(pod.get("spec") or {}, _OF_POD)
    for kind in ("containers", "initContainers"):
        if containers := spec.get(kind):
            spec[kind] = [_without(each, _OF_CONTAINER) for each in containers]
    return trim({**pod, "spec": spec})


def trim_node(node: NodeDocument) -> dict[str, Any]:
    """Drop the images and the heartbeats of a node."""
    status = _without(node.get("status") or {}, _OF_NODE)
    if conditions := status.get("conditions"):
        status["conditions"] = [_without(each, _HEARTBEAT) for each in conditions]
    return trim({**node, "status": status})


def is_more_than_a_heartbeat(known: NodeDocument, shown: NodeDocument) -> bool:
    """True if more than the heartbeat of a node has changed."""
    one, other = (
        {**each, "metadata": _without(each["metadata"], _VERSION)} for each in (known, shown)
    )
    return one != other


def _without(document: Json, left_out: Collection[str]) -> dict[str, Any]:
    return {name: each for name, each in document.items() if name not in left_out}


def _with_shared_texts(document: Json) -> dict[str, Any]:
    """
    Return a copy that shares names and short texts with all other documents.

    Each answer of the API server has its own copies; shared, a job and its pod take half of the memory.
    """
    return {sys.intern(name): _share(each) for name, each in document.items()}


def _share(value: Any) -> Any:
    if isinstance(value, str):
        return sys.intern(value) if len(value) <= LONGEST_SHARED else value
    if isinstance(value, dict):
        return _with_shared_texts(value)
    if isinstance(value, list):
        return [_share(each) for each in value]
    return value


class Mirror(Generic[D]):
    """The objects of one kind."""

    def __init__(
        self,
        changed: Callable[[Name, bool], None],
        *,
        is_news: Callable[[D, D], bool] = lambda _known, _shown: True,
        trimmed: Callable[[D], Json] = trim,
        is_meant: Callable[[Json], bool] = lambda _: True,
    ) -> None:
        """
        Begin empty; ``changed`` is called with a name, and false if we wrote the change ourselves.

        ``is_news`` compares the documents before and after another program's write; ``trimmed`` returns the part of
        a document that is kept. Objects that are not ``is_meant`` are left out.
        """
        self._changed = changed
        self._is_news = is_news
        self._trimmed = trimmed
        self._is_meant = is_meant
        self._objects: dict[Name, D] = {}
        self._gone: dict[Name, int] = {}
        """The versions of recently deleted objects."""
        self._listed_at: dict[str, int] = {}
        """The version of the last list of each namespace; of all objects under an empty name."""

    @property
    def objects(self) -> Mapping[Name, D]:
        return self._objects

    def get(self, name: Name) -> D | None:
        return self._objects.get(name)

    def show(self, document: Json, *, is_ours: bool = False) -> None:
        """Store a document from a watch, or the answer to our own write."""
        name, version = Name.of(document), version_of(document)
        known = self._objects.get(name)
        if known is not None and version_of(known) >= version:
            return
        if known is None:
            # An unknown object may have been deleted since this version.
            listed_at = (self._listed_at.get(each, -1) for each in ("", name.namespace))
            if version <= max(self._gone.get(name, -1), *listed_at):
                return
        if not self._is_meant(document):
            # It may have the name of an earlier object that is meant, whose end was not shown yet.
            if known is not None:
                self.show_end(document)
            return
        self._gone.pop(name, None)
        shown = self._objects[name] = cast(D, self._trimmed(cast(D, document)))
        self._changed(name, not is_ours and (known is None or self._is_news(known, shown)))

    def show_end(self, document: Json) -> None:
        """Note that an object was deleted; the document is its last version."""
        name, version = Name.of(document), version_of(document)
        known = self._objects.get(name)
        if known is not None and version_of(known) > version:
            return
        self._gone[name] = version
        if len(self._gone) > MOST_GONE:
            del self._gone[next(iter(self._gone))]
        if known is not None:
            del self._objects[name]
            self._changed(name, True)  # noqa: FBT003 - as above

    def show_all(self, documents: Iterable[Json], version: int, *, namespace: str = "") -> None:
        """Store a list of all objects, or of one namespace: older objects missing from it are
        deleted.
        """
        there = set()
        for document in documents:
            there.add(Name.of(document))
            self.show(document)
        for name, known in list(self._objects.items()):
            is_meant = namespace in ("", name.namespace) and name not in there
            if is_meant and version_of(known) <= version:
                del self._objects[name]
                self._changed(name, True)  # noqa: FBT003 - as above
        self._listed_at[namespace] = max(self._listed_at.get(namespace, -1), version)


class Listener(Protocol):
    """A leader, which reacts to changes."""

    def note_change(self) -> None:
        """Called after each change, our own included."""

    def note_news(self, *, burst: bool) -> None:
        """Called after each change by others; ``burst`` if more of them are expected."""

    def note_job(self, name: Name) -> None:
        """Called for each job that a user has submitted or changed."""


class Mirrors:
    """The objects that the operator watches. They outlive a leader, which subscribes to them."""

    def __init__(self) -> None:
        self._listener: Listener | None = None
        self._is_collecting = False
        self.changed_jobs: set[Name] = set()
        """The jobs that have changed since the last cycle."""
        self.changed_pods: set[Name] = set()
        """The pods that have changed since they were last counted."""
        self.jobs: Mirror[Json] = Mirror(
            self._job_changed, is_news=_is_more_than_ours, is_meant=lambda job: not manager_of(job)
        )
        """Without the jobs that another controller manages; ``managedBy`` cannot change."""
        self.pods: Mirror[PodDocument] = Mirror(self._pod_changed, trimmed=trim_pod)
        self.nodes: Mirror[NodeDocument] = Mirror(
            self._changed, is_news=is_more_than_a_heartbeat, trimmed=trim_node
        )
        self.held: Mirror[Json] = Mirror(
            self._changed,
            is_news=lambda known, shown: {**known, "metadata": 0} != {**shown, "metadata": 0},
            is_meant=lambda each: bool(each["holds"]) or each["max_priority"] is not None,
        )
        """The namespaces whose annotations hold jobs or grant priorities."""
        self.workloads: Mirror[Json] = Mirror(self._changed)
        """The Workloads of Kueue that belong to jobs; empty unless jobs are in its queues."""
        self.flavors: Mirror[Json] = Mirror(self._changed)
        """The ResourceFlavors of Kueue, likewise."""
        self.cluster_queues: Mirror[Json] = Mirror(
            self._changed, is_news=lambda _known, _shown: False
        )
        """The ClusterQueues of Kueue, likewise, for sentences alone; each reservation in the cluster changes one."""
        self.others = OtherObjects()
        """The other users of the nodes."""

    def collect_changes(self) -> None:
        """
        Collect from now on which jobs and pods have changed, beginning with all of them.

        In an operator that waits to lead, no cycle would empty the sets.
        """
        self._is_collecting = True
        self.changed_jobs.update(self.jobs.objects)
        self.changed_pods.update(self.pods.objects)

    def listen(self, listener: Listener | None) -> None:
        """Report changes to this leader from now on; to none if it is ``None``."""
        self._listener = listener

    def report_news(self, *, burst: bool) -> None:
        """Wake the leader for news that no mirror shows."""
        if self._listener is not None:
            self._listener.note_news(burst=burst)

    def _job_changed(self, name: Name, is_news: bool) -> None:  # noqa: FBT001 - as Mirror has it
        if self._is_collecting:
            self.changed_jobs.add(name)
        self._report(is_news=is_news, burst=True)
        if is_news and self._listener is not None:
            self._listener.note_job(name)

    def _pod_changed(self, name: Name, is_news: bool) -> None:  # noqa: FBT001 - as Mirror has it
        if self._is_collecting:
            self.changed_pods.add(name)
        self._changed(name, is_news)

    def _changed(self, _name: Name, is_news: bool) -> None:  # noqa: FBT001 - as Mirror has it
        self._report(is_news=is_news, burst=False)

    def _report(self, *, is_news: bool, burst: bool) -> None:
        if self._listener is not None:
            self._listener.note_change()
        if is_news:
            self.report_news(burst=burst)
