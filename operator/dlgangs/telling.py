"""
Reports about gangs to people, as Events of their pods: one for each piece of news.

An Event about a waiting gang comes only after a while, because nearly all gangs wait until their
pods are created; a problem that needs a person is reported at once.
"""

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from dlcore.primitives.once_per_change import OncePerChange
from dlgangs.decider import Since
from dlgangs.members import GangName, Member, Stage, Standing, Wrong
from dlkube.names import Name

PATIENCE_S: Final = 2.0
MOST_TOLD: Final = 8
"""The number of a gang's pods that get our Event; kube-scheduler sends one to each pod that it has asked about."""
WARNINGS: Final = frozenset({Standing.IMPOSSIBLE, Standing.WRONG})
WAITS: Final = frozenset({Standing.INCOMPLETE, Standing.WAITING})


class GangEvent(NamedTuple):
    """An Event to be."""

    pod: Name
    reason: str
    message: str
    is_warning: bool


class GangEvents:
    """The reports so far."""

    def __init__(self) -> None:
        # No OncePerChange: the news about a gang has to reach each of its pods, also one that is
        # created after the others got it, and another standing makes all of them news again.
        self._reported: dict[GangName, tuple[str, str, frozenset[str]]] = {}
        self._wrong: OncePerChange[tuple[Name, str]] = OncePerChange()
        """By name and UID, so that a namesake is news of its own."""
        self.due = float("inf")
        """When there may be something to tell next."""

    def about_gangs(
        self, standings: Mapping[GangName, Since], members: Mapping[Name, Member], *, now: float
    ) -> Iterator[GangEvent]:
        """Tell what is new about gangs."""
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
            return  # There was no warning, and Kubernetes itself reports that pods are scheduled.
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
        """Tell what is wrong with pods themselves."""
        self._wrong.keep({(name, each.uid) for name, each in wrong.items()})
        for name, each in wrong.items():
            if self._wrong.note((name, each.uid), each.message):
                yield GangEvent(name, Standing.WRONG.value, each.message, is_warning=True)
