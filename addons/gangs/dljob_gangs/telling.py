"""Kubernetes Events about gangs, written to their pods.

An Event about a waiting gang comes only after a delay, because nearly all gangs wait until their
pods are created. A problem that needs a person is reported at once.
"""

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from dljob.core.primitives.once_per_change import OncePerChange
from dljob.kube.names import Name
from dljob_gangs.decider import Since
from dljob_gangs.members import GangName, Member, Stage, Standing, Wrong

PATIENCE_S: Final = 2.0
MOST_TOLD: Final = 8
"""The most pods of a gang that get our Event; kube-scheduler writes its own Event for each pod."""
WARNINGS: Final = frozenset({Standing.IMPOSSIBLE, Standing.WRONG})
WAITS: Final = frozenset({Standing.INCOMPLETE, Standing.WAITING})


class GangEvent(NamedTuple):
    """An Event to write."""

    pod: Name
    reason: str
    message: str
    is_warning: bool


class GangEvents:
    """Decides which Events are due, and remembers the Events written so far."""

    def __init__(self) -> None:
        # OncePerChange does not fit: each pod needs the Event, also a pod that is created later,
        # and a changed standing makes the Event due for all pods again.
        self._reported: dict[GangName, tuple[str, str, frozenset[str]]] = {}
        self._wrong: OncePerChange[tuple[Name, str]] = OncePerChange()
        self.due = float("inf")
        """When the next Event may be due."""

    def about_gangs(
        self, standings: Mapping[GangName, Since], members: Mapping[Name, Member], *, now: float
    ) -> Iterator[GangEvent]:
        """Yield new Events about gangs."""
        self.due = float("inf")
        for gang in self._reported.keys() - standings.keys():
            del self._reported[gang]
        waiting: dict[GangName, list[Member]] = {}
        for member in members.values():
            if member.stage is Stage.PENDING:
                waiting.setdefault(member.gang, []).append(member)
        for gang, since in standings.items():
            yield from self._about_gang(gang, since, members=waiting.get(gang, []), now=now)

    def _about_gang(
        self, gang: GangName, since: Since, *, members: list[Member], now: float
    ) -> Iterator[GangEvent]:
        standing, message = since.verdict
        before = self._reported.get(gang)
        if standing is Standing.BOUND or (standing is Standing.RESERVED and before is None):
            return  # Kubernetes itself reports that pods are scheduled.
        if standing in WAITS and now < since.since + PATIENCE_S:
            self.due = min(self.due, since.since + PATIENCE_S)
            return
        heard = (
            before[2] if before is not None and before[:2] == (standing, message) else frozenset()
        )
        if standing is Standing.RESERVED and before is not None and before[0] == standing:
            return
        chosen = sorted(members, key=lambda each: each.name)[:MOST_TOLD]
        for member in chosen:
            if member.uid not in heard:
                yield GangEvent(member.name, standing.value, message, standing in WARNINGS)
        self._reported[gang] = (standing, message, heard | {each.uid for each in chosen})

    def about_pods(self, wrong: Mapping[Name, Wrong]) -> Iterator[GangEvent]:
        """Yield new Events about invalid pods."""
        self._wrong.keep({(name, each.uid) for name, each in wrong.items()})
        for name, each in wrong.items():
            if self._wrong.note((name, each.uid), each.message):
                yield GangEvent(name, Standing.WRONG.value, each.message, is_warning=True)
