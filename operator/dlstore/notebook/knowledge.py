"""
The profiles as the loop knows them: what the store had, and what was observed since.

Part of :mod:`dlstore.notebook.notebook`. An observation counts at once, whether the store answers or
not. Every write brings back the observations of others, and then our own waiting ones are
folded in again. A profile with unchanged content stays the same object, because
predictions are cached by it.

Not guarded against threads; the notebook is.
"""

from collections.abc import Callable, Mapping, Sequence

from dlcore.profiles import Costs, JobType, Observation, Profile, fold
from dlstore.store import StoredProfile, fold_all

MOST_FOLDED_AGAIN = 256
"""With more waiting than this, what others have learnt is taken in when they have been written."""

Waiting = Callable[[JobType], Sequence[Observation]]


class Knowledge:
    """Profiles by type: as they are known, and as the store is known to have them."""

    def __init__(self, defaults: Costs, waiting: Waiting) -> None:
        self._defaults = defaults
        self._waiting = waiting
        self._profiles: dict[JobType, Profile] = {}
        self._stored: dict[JobType, StoredProfile] = {}
        self._behind: set[JobType] = set()
        """The types of which the store has something that is not in our profile yet."""
        self._view: Mapping[JobType, Profile] | None = None

    def profiles(self) -> Mapping[JobType, Profile]:
        """All of them; another mapping whenever something was learnt, and never a changed one."""
        if self._view is None:
            self._view = dict(self._profiles)
        return self._view

    def revisions(self) -> Mapping[JobType, int]:
        """Which revisions of the store are known."""
        return {kind: stored.revision for kind, stored in self._stored.items()}

    def revision(self, kind: JobType) -> int:
        """Which revision of a type the store is known to have; 0 if none."""
        return self._stored.get(kind, StoredProfile(None)).revision

    def learn(self, kind: JobType, observation: Observation) -> bool:
        """Fold an observation in; tell whether there was something to learn."""
        known = self._profiles.get(kind) or Profile(kind)
        folded = fold(known, observation, defaults=self._defaults)
        if folded is known:
            return False
        self._set(kind, folded)
        return True

    def forget(self, kind: JobType) -> None:
        """Know nothing of a type that is in no store."""
        if self._profiles.pop(kind, None) is not None:
            self._view = None

    def confirm(self, kind: JobType, expected: Profile, stored: StoredProfile) -> None:
        """The store has taken what was under way, and has this now instead of the expected."""
        self._stored[kind] = stored
        if stored.profile is None or not stored.profile.says_the_same_as(expected):
            self._behind.add(kind)
        if kind in self._behind:
            self._catch_up(kind)

    def expect(self, kind: JobType, written: Sequence[Observation]) -> Profile:
        """Return the profile that the store will have unless another program has changed it."""
        stored = self._stored.get(kind, StoredProfile(None)).profile
        return fold_all(stored or Profile(kind), written, defaults=self._defaults)

    def reload(self, kind: JobType, stored: StoredProfile) -> None:
        """The store was found to have this."""
        self._stored[kind] = stored
        self._catch_up(kind)

    def forget_all_but(self, kinds: Mapping[JobType, int]) -> None:
        """A user has removed the types that the store no longer has."""
        for kind in self._stored.keys() - kinds.keys():
            del self._stored[kind]
            self._catch_up(kind)

    def _catch_up(self, kind: JobType) -> None:
        waiting = self._waiting(kind)
        if len(waiting) > MOST_FOLDED_AGAIN:
            self._behind.add(kind)
            return
        self._behind.discard(kind)
        stored = self._stored.get(kind, StoredProfile(None)).profile
        base = stored or Profile(kind)
        current = fold_all(base, waiting, defaults=self._defaults)
        if stored is None and current is base:
            if self._profiles.pop(kind, None) is not None:
                self._view = None
            return
        known = self._profiles.get(kind)
        if known is None or not known.says_the_same_as(current):
            self._set(kind, current)

    def _set(self, kind: JobType, profile: Profile) -> None:
        self._profiles[kind] = profile
        self._view = None
