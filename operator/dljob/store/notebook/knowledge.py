"""The profiles that the loop knows: the stored profiles plus newer observations.

An observation counts at once. Every write returns the observations of other processes, and our
queued observations are folded into the result again. A profile stays the same object while its
content is the same, because predictions are cached by identity.

Not thread-safe; the notebook holds a lock.
"""

from collections.abc import Callable, Mapping, Sequence
from statistics import median

from dljob.core.profiles import Costs, CostSeen, CostTerm, JobType, Observation, Profile, fold
from dljob.store.store import StoredProfile, fold_all

MOST_FOLDED_AGAIN = 256
"""With more queued observations, wait until they are written before taking over other processes'
profiles.
"""

ENDED = JobType.of_one_job("")
"""Has the costs of jobs that have ended and had a type of their own; no job has an empty name."""

Waiting = Callable[[JobType], Sequence[Observation]]


class Knowledge:
    """Profiles by type, both in memory and as stored."""

    def __init__(self, defaults: Costs, waiting: Waiting) -> None:
        self._defaults = defaults
        self._waiting = waiting
        self._profiles: dict[JobType, Profile] = {}
        self._stored: dict[JobType, StoredProfile] = {}
        self._behind: set[JobType] = set()
        """The types whose stored profile has observations that the profile in memory lacks."""
        self._view: Mapping[JobType, Profile] | None = None

    def profiles(self) -> Mapping[JobType, Profile]:
        """Return all profiles; a new mapping after each change."""
        if self._view is None:
            self._view = dict(self._profiles)
        return self._view

    def revisions(self) -> Mapping[JobType, int]:
        """Return the known revisions of the store."""
        return {kind: stored.revision for kind, stored in self._stored.items()}

    def revision(self, kind: JobType) -> int:
        """Return the known revision of a type; 0 if there is none."""
        return self._stored.get(kind, StoredProfile(None)).revision

    def learn(self, kind: JobType, observation: Observation) -> bool:
        """Fold in an observation; return whether the profile changed."""
        known = self._profiles.get(kind) or Profile(kind)
        folded = fold(known, observation, defaults=self._defaults)
        if folded is known:
            return False
        self._set(kind, folded)
        return True

    def adopt(self, profile: Profile) -> None:
        """Take a profile over from a former controller, if the type is unknown."""
        if profile.type not in self._profiles:
            self._set(profile.type, profile)

    def forget(self, kind: JobType) -> None:
        """Forget a type that is not in the store, except the costs of its changes, from which the usual ones follow."""
        known = self._profiles.pop(kind, None)
        if known is None:
            return
        self._view = None
        for term, samples in known.cost_samples.items():
            self.learn(ENDED, CostSeen(CostTerm(term), median(samples)))

    def confirm(self, kind: JobType, expected: Profile, *, stored: StoredProfile) -> None:
        """Note the stored profile after a write."""
        self._stored[kind] = stored
        if stored.profile is None or not stored.profile.says_the_same_as(expected):
            self._behind.add(kind)
        if kind in self._behind:
            self._catch_up(kind)

    def expect(self, kind: JobType, written: Sequence[Observation]) -> Profile:
        """Return the stored profile after a write, unless another process changes it."""
        stored = self._stored.get(kind, StoredProfile(None)).profile
        return fold_all(stored or Profile(kind), written, defaults=self._defaults)

    def reload(self, kind: JobType, stored: StoredProfile) -> None:
        """Note the stored profile after a read."""
        self._stored[kind] = stored
        self._catch_up(kind)

    def forget_all_but(self, kinds: Mapping[JobType, int]) -> None:
        """Forget the types that a user has removed from the store."""
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
