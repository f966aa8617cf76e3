"""
Nodes for a whole gang, or none: scores by Algorithm 3 of the thesis that this plugin comes from.

    F.-L. Lövenvald, "Comparing a gang-like scheduler with the default Kubernetes scheduler in a
    serverless deep learning training environment", Umeå University, 2021, section 4.5.

Algorithm 3 scores one node for one pod; its aim is that pods of one job run together, because they communicate, and
pods of different jobs apart. This module applies it to all pods of a gang. Pods are placed from the largest to the
smallest, each on the node with the highest score; of several, on one with pods of its gang, else on the one that can
take the most of the remaining pods, then on the one that it fills best. If a pod does not fit, the last choice is
undone, as often as :data:`EFFORT` allows, so that a gang which fits is nearly always placed.

Pure: the same arguments give the same nodes.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from dljob.core.placement.amounts import Amounts, fits, less
from dljob.kube.constraints.matching import may_run
from dljob.kube.constraints.requirements import NodeTraits, Wants
from dljob_gangs.members import Member, Pair

HIGHEST: Final = 100
EFFORT: Final = 100_000
"""The number of nodes that the search tries before it gives up, not counting the first descent."""

Nodes = tuple[str, ...]


class Placing(NamedTuple):
    """The result of a search."""

    nodes: Mapping[str, str] | None
    """The node of each pod by its uid; None if the gang does not fit."""
    is_proven: bool = True
    """False if the search gave up."""
    short_of: str = ""
    """If there is no placement: a pod that does not fit."""


def score(tenants: Collection[str], own: str) -> int:
    """
    Score a node for a pod of a gang, by Algorithm 3.

    ``tenants`` are the training jobs with pods on the node, ``own`` is that of the pod, or empty.
    """
    # Lines 1 and 2: if not pod.IsDeepLearningPod() then return 100
    if not own:
        return HIGHEST
    # Lines 3 and 4: if node.differentJobPodExists(pod) then return 0
    if any(tenant != own for tenant in tenants):
        return 0
    # Line 5: return 100
    return HIGHEST


@dataclass(frozen=True, slots=True)
class Ground:
    """The nodes for a gang."""

    machines: Mapping[str, NodeTraits]
    free: Mapping[str, Amounts]
    tenants: Mapping[str, frozenset[str]]
    own: str
    """The name of the gang among the tenants."""
    barred: Collection[Pair] = frozenset()
    """Nodes that kube-scheduler refuses for a pod."""


def place(members: Sequence[Member], ground: Ground) -> Placing:
    """Find a node for each of these pods of one gang."""
    eligible = _find_eligible(members, ground)
    for member in members:
        if not eligible[member.uid]:
            return Placing(None, short_of=member.name.name)
    if short := _too_many(members, eligible, ground=ground):
        return Placing(None, short_of=short)
    return _Search(_largest_first(members, ground), eligible, ground=ground).run()


def _find_eligible(members: Sequence[Member], ground: Ground) -> dict[str, Nodes]:
    """Return the nodes on which each pod would fit alone; equal pods share the result."""
    known: dict[Wants, Nodes] = {}
    result: dict[str, Nodes] = {}
    barred_pods = {uid for uid, _ in ground.barred}
    for member in members:
        wants = member.wants
        if wants not in known:
            asked = dict(wants.amounts)
            known[wants] = tuple(
                name
                for name, machine in sorted(ground.machines.items())
                if fits(asked, ground.free.get(name, {})) and may_run(wants, machine)
            )
        nodes = known[wants]
        if member.uid in barred_pods:
            nodes = tuple(node for node in nodes if (member.uid, node) not in ground.barred)
        result[member.uid] = nodes
    return result


def _too_many(
    members: Sequence[Member], eligible: Mapping[str, Nodes], *, ground: Ground
) -> str | None:
    """Name a pod if there are more equal pods than all nodes together can take."""
    alike: dict[Wants, list[Member]] = {}
    for member in members:
        alike.setdefault(member.wants, []).append(member)
    for wants, group in alike.items():
        asked = dict(wants.amounts)
        nodes = {node for member in group for node in eligible[member.uid]}
        room = sum(_times(asked, ground.free[node]) for node in nodes)
        if room < len(group):
            # By name, so that the message stays the same when a pod is created again.
            return sorted(each.name.name for each in group)[room]
    return None


def _times(asked: Amounts, there: Amounts) -> int:
    return min(there[name] // amount for name, amount in asked.items())


def _largest_first(members: Sequence[Member], ground: Ground) -> list[Member]:
    """Sort large pods before small ones, which fit nearly everywhere."""
    largest: dict[str, int] = {}
    for machine in ground.machines.values():
        for name, amount in machine.allocatable.items():
            largest[name] = max(largest.get(name, 0), amount)

    def order(member: Member) -> tuple[float, str, str]:
        share = max(amount / largest[name] for name, amount in member.wants.amounts)
        return (-share, member.role, member.name.name)

    return sorted(members, key=order)


def _takers(eligible: Mapping[str, Nodes]) -> dict[str, tuple[int, ...]]:
    """Return for each node the kinds of pods that fit on it."""
    result: dict[str, tuple[int, ...]] = {}
    for number, nodes in enumerate(dict.fromkeys(eligible.values())):
        for node in nodes:
            result[node] = (*result.get(node, ()), number)
    return result


class _Choice(NamedTuple):
    nodes: Iterator[str]
    """The nodes that have not been tried yet for the pod."""
    taken: str | None
    """The present node of the pod."""


class _Search:
    """A depth-first search, the best nodes first."""

    def __init__(
        self, members: Sequence[Member], eligible: Mapping[str, Nodes], *, ground: Ground
    ) -> None:
        self._members = members
        self._asked = [dict(member.wants.amounts) for member in members]
        self._eligible = eligible
        self._ground = ground
        self._free: dict[str, Amounts] = dict(ground.free)
        self._ours = {
            name: sum(1 for tenant in tenants if tenant == ground.own)
            for name, tenants in ground.tenants.items()
        }
        self._takers = _takers(eligible)
        self._scores = {
            node: score(ground.tenants.get(node, ()), ground.own) for node in self._takers
        }
        self._numbers: dict[object, int] = {}
        """The numbers of the kinds of nodes."""
        self._kinds = {node: self._kind(node) for node in self._takers}
        # The first descent always runs to its end.
        self._effort = EFFORT + len(members) * (len(members) + len(self._takers))

    def run(self) -> Placing:
        choices: list[_Choice] = []
        deepest = 0
        while len(choices) < len(self._members):
            deepest = max(deepest, len(choices))
            if self._effort < 0:
                return Placing(None, is_proven=False, short_of=self._name(deepest))
            choices.append(_Choice(self._candidates(len(choices)), None))
            if not self._advance(choices):
                return Placing(None, short_of=self._name(deepest))
        pairs = zip(self._members, choices, strict=True)
        return Placing({member.uid: choice.taken or "" for member, choice in pairs})

    def _name(self, index: int) -> str:
        return self._members[index].name.name

    def _advance(self, choices: list[_Choice]) -> bool:
        """Give the last pod its next node, backtracking as needed; false if none is left."""
        while choices:
            index = len(choices) - 1
            nodes, taken = choices[-1]
            if taken is not None:
                self._move(index, taken, sign=-1)
            following = next(nodes, None)
            if following is not None:
                self._move(index, following, sign=+1)
                choices[-1] = _Choice(nodes, following)
                return True
            choices.pop()
        return False

    def _move(self, index: int, node: str, *, sign: int) -> None:
        asked = {name: sign * amount for name, amount in self._asked[index].items()}
        self._free[node] = less(self._free[node], asked)
        self._ours[node] = self._ours.get(node, 0) + sign
        self._kinds[node] = self._kind(node)

    def _kind(self, node: str) -> int:
        """Return the number of a node's present kind; only one of several equal nodes needs to be
        tried.
        """
        likeness = (
            frozenset(self._free[node].items()),
            frozenset(self._ground.machines[node].allocatable.items()),
            self._takers[node],
            self._scores[node],
            bool(self._ours.get(node)),
        )
        return self._numbers.setdefault(likeness, len(self._numbers))

    def _candidates(self, index: int) -> Iterator[str]:
        """Return the nodes for a pod, best first, one of each kind."""
        asked, uid = self._asked[index], self._members[index].uid
        unlike: dict[int, str] = {}
        for node in self._eligible[uid]:
            unlike.setdefault(self._kinds[node], node)
        self._effort -= len(unlike)
        nodes = [node for node in unlike.values() if fits(asked, self._free[node])]
        # A node with pods of the gang always ranks best.
        joins = any(self._ours.get(node) and self._scores[node] == HIGHEST for node in nodes)
        ahead = {} if joins else {node: self._look_ahead(index, node) for node in nodes}

        def preference(node: str) -> tuple[int, bool, int, float, str]:
            own = bool(self._ours.get(node))
            left = self._left(node, asked)
            return (-self._scores[node], not own, -ahead.get(node, 0), left, node)

        return iter(sorted(nodes, key=preference))

    def _left(self, node: str, asked: Amounts) -> float:
        """Return the remaining share of the requested resources."""
        allocatable = self._ground.machines[node].allocatable
        free = self._free[node]
        return sum((free[name] - amount) / allocatable[name] for name, amount in asked.items())

    def _look_ahead(self, index: int, node: str) -> int:
        """Count how many of the remaining pods fit on a node."""
        free, count = self._free[node], 0
        for asked in self._asked[index:]:
            if fits(asked, free):
                free = less(free, asked)
                count += 1
        self._effort -= len(self._asked) - index
        return count
