"""
Mirrors of the objects that the watches have shown, with our own latest writes until the watches show those too (law 2).

Versions decide what is newer: the API server counts all writes of a kind of resource in one number,
so an answer to a write and an event of the watch can come in any order.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from dlkube import names
from dlkube.constraints.other_pods import OtherObjects
from dlkube.documents import Json
from dlkube.names import Name
from dlkube.watches.trimming import (
    is_more_than_a_heartbeat,
    trim,
    trim_node,
    trim_pod,
)

_OUR_OWN = frozenset({"resourceVersion", "finalizers"})
MOST_GONE = 10_000
"""Events of what was deleted longer ago than this do not come any more."""


def _is_more_than_ours(known: Json, shown: Json) -> bool:
    """
    Whether anything of a job is new but what we ourselves write: a status in one epoch, and our finalizer.

    The watch often delivers our own write before its answer arrives. Every write of a user changes
    the metadata: a new spec raises the generation.
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
    """Which write made it what it is."""
    return int(document["metadata"]["resourceVersion"])


def epoch_of(document: Json) -> int:
    """Which leader wrote the status; 0 if none did."""
    epoch: int = (document.get("status") or {}).get("epoch", 0)
    return epoch


class Mirror:
    """The objects of one kind, as far as is known here."""

    def __init__(
        self,
        changed: Callable[[Name, bool], None],
        *,
        is_news: Callable[[Json, Json], bool] = lambda _known, _shown: True,
        trimmed: Callable[[Json], Json] = trim,
    ) -> None:
        self._changed = changed
        """Told what has changed, and whether that is news: our own writes are not."""
        self._is_news = is_news
        """Whether what others wrote is, by the object as it was and as it is."""
        self._trimmed = trimmed
        """Returns of an object what is remembered."""
        self._objects: dict[Name, Json] = {}
        self._gone: dict[Name, int] = {}
        """Of objects that were deleted lately: with which write."""
        self._listed_at: dict[str, int] = {}
        """As of which write a namespace, or everything, was listed."""

    @property
    def objects(self) -> Mapping[Name, Json]:
        return self._objects

    def get(self, name: Name) -> Json | None:
        return self._objects.get(name)

    def show(self, document: Json, *, is_ours: bool = False) -> None:
        """Take in what a watch says, or the answer to a write of ours."""
        name, version = Name.of(document), version_of(document)
        known = self._objects.get(name)
        if known is not None and version_of(known) >= version:
            return
        if known is None and self._is_past(name, version):
            return
        self._gone.pop(name, None)
        shown = self._objects[name] = self._trimmed(document)
        self._changed(name, not is_ours and (known is None or self._is_news(known, shown)))

    def show_end(self, document: Json) -> None:
        """Take in that an object is deleted; the document is the last there was of it."""
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
        """
        Take in a whole list, as it was at a version: what is older and not in it is deleted.

        With a namespace it is the list of the objects in that namespace.
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

    def _is_past(self, name: Name, version: int) -> bool:
        """Whether what is unknown and of this version is known to be deleted."""
        listed_at = (self._listed_at.get(each, -1) for each in ("", name.namespace))
        return version <= max(self._gone.get(name, -1), *listed_at)


class Listener(Protocol):
    """A leader, which acts upon changes."""

    def note_change(self) -> None:
        """Called after each change, our own included."""

    def note_news(self, *, burst: bool) -> None:
        """Called after each change that others made; ``burst`` if more of the kind is to be expected."""

    def note_job(self, name: Name) -> None:
        """Called for each job that a user has submitted or changed."""


class Mirrors:
    """The objects that the operator watches. They outlive a leader, which listens to them."""

    def __init__(self) -> None:
        self._listener: Listener | None = None
        self._is_collecting = False
        self.changed_jobs: set[Name] = set()
        """The jobs that have changed since the last cycle."""
        self.changed_pods: set[Name] = set()
        """The pods that have changed since they were last counted."""
        self.jobs = Mirror(self._job_changed, is_news=_is_more_than_ours)
        self.pods = Mirror(self._pod_changed, trimmed=trim_pod)
        self.nodes = Mirror(self._changed, is_news=is_more_than_a_heartbeat, trimmed=trim_node)
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
