"""
The working values of a policy that reshapes: which job would hold which GPUs, and which each could give up.

A :class:`Ledger` starts as things are, and the policy tries its moves on it; nothing outside is
touched. :mod:`dljob.core.policies.papers.adaptive` finds victims with it, in time that hardly grows with the
number of jobs: what could be given up is kept in heaps by the gap that would come of it, and
only the nodes that a move touches are looked at again.
"""

import heapq
import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from dljob.core.contract import Share, View
from dljob.core.model import Cause, Cluster, JobId, JobState, NodeName, Placement
from dljob.core.placement.counting import count_good, count_nodes, count_usable, name_type
from dljob.core.placement.free_gpus import Room
from dljob.core.predicting.predictor import Predictor
from dljob_wire.messages import Shape

GLANCE = 64
"""Number of offers to examine if the cheapest one is too late."""


class Holding:
    """A job with GPUs, as they would be after the moves tried so far."""

    __slots__ = (
        "_left",
        "_times",
        "cause",
        "gpu_type",
        "gpus",
        "nodes",
        "predictor",
        "state",
        "then",
    )

    def __init__(
        self, state: JobState, nodes: dict[NodeName, int], *, gpu_type: str, view: View
    ) -> None:
        self.state = state
        self.nodes = nodes
        self.gpus = sum(nodes.values())
        self.gpu_type = gpu_type
        self.cause: Cause | None = None
        """Reason for the change; ``None`` if the job does not change."""
        self.predictor: Predictor = view.predictor
        self.then = view.now
        self._times: dict[tuple[Shape, bool, bool], float] = {}
        self._left: float | None = None

    @property
    def remaining(self) -> float:
        """Return when it will be done and gone, in seconds from now, if left as it is on the ledger."""
        if self._left is None:
            self._left = self.remaining_on(self.nodes, self.gpu_type)
        return self._left

    def put(self, nodes: Mapping[NodeName, int], gpu_type: str) -> None:
        """Give the job these GPUs."""
        self.nodes, self.gpus, self.gpu_type = dict(nodes), sum(nodes.values()), gpu_type
        self._left = None

    def remaining_on(self, nodes: Mapping[NodeName, int], gpu_type: str) -> float:
        """Return the same with these GPUs on these nodes, the cost of the change included."""
        placement = self.state.placement
        moves = placement is not None and not nodes.keys() <= set(placement.nodes)
        stays = not moves or (
            placement is not None and not nodes.keys().isdisjoint(placement.nodes)
        )
        shape = Shape(sum(nodes.values()), len(nodes), gpu_type)
        return self.remaining_with(shape, moves=moves, stays=stays)

    def remaining_with(self, shape: Shape, *, moves: bool = False, stays: bool = True) -> float:
        """Return the same in another shape, on nodes that it has or, if it ``moves``, on others, with or without its own."""
        known = self._times.get((shape, moves, stays))
        if known is None:
            known = self._predict(shape, moves=moves, stays=stays)
            self._times[shape, moves, stays] = known
        return known

    def _predict(self, shape: Shape, *, moves: bool, stays: bool) -> float:
        placement = self.state.placement
        if placement is None:
            return self.predictor.completion(self.state, shape, self.then)
        if placement.shape == shape and not moves:
            return self.predictor.remaining(self.state, self.then)
        return self.predictor.remaining_after(
            self.state, shape, now=self.then, moves=moves, stays=stays
        )

    def share(self, unchanged: Cause) -> Share:
        """The policy's answer for this job."""
        if self.cause is None:
            return Share(self.gpus, unchanged)
        return Share(self.gpus, self.cause, self.gpu_type, dict(self.nodes))


class Offer(NamedTuple):
    """GPUs that a job could give up on one node, and what that would cost it."""

    loss: float
    """How much later the job would end."""
    remaining: float
    """Remaining time of the job after the offer is taken."""
    order: int
    node: NodeName
    keeps: int
    """Number of GPUs that the job would keep."""
    version: int
    holding: Holding

    @property
    def left(self) -> dict[NodeName, int]:
        """Return the placement of the job after the offer is taken."""
        gives = self.holding.gpus - self.keeps
        if gives > self.holding.nodes[self.node]:
            home = find_home(self.holding.nodes, self.keeps, leaves=self.node)
            assert home is not None
            return {home: self.keeps}
        nodes = {**self.holding.nodes, self.node: self.holding.nodes[self.node] - gives}
        return {node: count for node, count in nodes.items() if count > 0}


def find_home(nodes: Mapping[NodeName, int], keeps: int, *, leaves: NodeName) -> NodeName | None:
    """
    Find the node to which a job on several can withdraw with the GPUs that it keeps, when it leaves one.

    It gives up everything else, because it has too little there to give on that node alone.
    """
    fits = [(count, node) for node, count in nodes.items() if node != leaves and count >= keeps]
    return min(fits)[1] if fits else None


class Ledger:
    """All holdings and the free GPUs."""

    def __init__(self, view: View) -> None:
        self.view = view
        self.cluster: Cluster = view.cluster
        self.holdings: dict[JobId, Holding] = {}
        self.room = Room(
            view.cluster, (s.placement for s in view.running if s.placement is not None)
        )
        for state in view.running:
            if state.placement is not None:
                self._hold(state, state.placement)
        self._spare: Room | None = None
        self._spread: dict[JobId, int] = {}
        """How many GPUs jobs on several nodes could give up at once, which each do on one node."""

    def _hold(self, state: JobState, placement: Placement) -> Holding:
        holding = Holding(
            state, count_nodes(placement), gpu_type=placement.gpu_type, view=self.view
        )
        self.holdings[state.job.id] = holding
        return holding

    def restore(self, state: JobState, placement: Placement) -> Holding:
        """Let a running job that the view left out go on as it is; its GPUs must be free."""
        self.room.take(count_usable(placement, self.cluster))
        return self._hold(state, placement)

    def add(self, state: JobState, nodes: Mapping[NodeName, int], *, cause: Cause) -> Holding:
        """Let a pending job have these GPUs, which must be free."""
        self.room.take(nodes, state)
        holding = Holding(
            state, dict(nodes), gpu_type=name_type(self.cluster, nodes), view=self.view
        )
        holding.cause = cause
        self.holdings[state.job.id] = holding
        if self._spare is not None:
            self._spare.take(self._least(holding), state)
            self._note_spread(holding)
        return holding

    def change(self, holding: Holding, nodes: Mapping[NodeName, int], *, cause: Cause) -> None:
        """Let a job have these GPUs instead of those that it has."""
        state = holding.state
        if self._spare is not None:
            self._spare.give(self._least(holding), state)
        self.room.give(self.count_good(holding, holding.nodes), state)
        self.room.take(self.count_good(holding, nodes), state)
        holding.put(nodes, name_type(self.cluster, nodes))
        if state.placement is not None:
            holding.cause = cause
        if self._spare is not None:
            self._spare.take(self._least(holding), state)
            self._note_spread(holding)

    @property
    def spare(self) -> Room:
        """The room that there would be if every job on one node kept only its least."""
        if self._spare is None:
            self._spare = Room(self.cluster)
            for holding in self.holdings.values():
                self._spare.take(self._least(holding), holding.state)
                self._note_spread(holding)
        return self._spare

    @property
    def spare_gpus(self) -> int:
        """
        Return how many GPUs there would be at most if every job gave up what it can.

        More than there is room for in :attr:`spare`, because on which of its nodes a job on several
        would give GPUs up is open.
        """
        return self.spare.total + sum(self._spread.values())

    def _note_spread(self, holding: Holding) -> None:
        if len(holding.nodes) > 1:
            # On one of its nodes, or on all but the one to which it withdraws.
            most = max(holding.nodes.values())
            options = holding.state.job.gpus.options
            parts = (each for each in options if holding.gpus - most <= each < holding.gpus)
            withdraws = (each for each in options if each <= most)
            least = min((*parts, *withdraws), default=holding.gpus)
            self._spread[holding.state.id] = holding.gpus - least
        else:
            self._spread.pop(holding.state.id, None)

    def _least(self, holding: Holding) -> dict[NodeName, int]:
        if len(holding.nodes) > 1:
            return self.count_good(holding, holding.nodes)
        least = {node: min(has, holding.state.least) for node, has in holding.nodes.items()}
        return self.count_good(holding, least)

    def count_good(self, holding: Holding, nodes: Mapping[NodeName, int]) -> dict[NodeName, int]:
        """
        Return how many of these GPUs of the job other jobs could get if they were free.

        A job may continue with GPUs that no other job could get; it gives those up first.
        """
        known = {node: count for node, count in nodes.items() if node in self.room.nodes}
        held = holding.state.placement
        return known if held is None else count_good(held, known, self.cluster)


class Offers:
    """
    The GPUs that running jobs could give up, by type and by the gap that would result on one node.

    A gap counts the GPUs that are free on the node already. Offers are never taken out of their
    heap when they become void; each carries the version of its node, and void ones are skipped.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._versions: dict[NodeName, int] = dict.fromkeys(ledger.room.nodes, 0)
        self._on_node: dict[NodeName, dict[JobId, Holding]] = {}
        self._heaps: dict[tuple[str, int], list[Offer]] = {}
        for job, holding in ledger.holdings.items():
            for node in holding.nodes:
                self._on_node.setdefault(node, {})[job] = holding
        for node in self._on_node:
            self._offer(node)

    def refresh(self, holding: Holding, nodes: Iterable[NodeName]) -> None:
        """Recompute the offers on these nodes after a move of the job."""
        for node in nodes:
            there = self._on_node.setdefault(node, {})
            if node in holding.nodes:
                there[holding.state.job.id] = holding
            else:
                there.pop(holding.state.job.id, None)
            if node in self._versions:
                self._versions[node] += 1
                self._offer(node)

    def best(self, state: JobState, gpu_type: str, *, gap: int, by: float) -> Offer | None:
        """
        The offer for exactly this gap whose giver loses least, of those who are done by then.

        Only of nodes that would take a pod of this job. Where the cheapest ones are all too late, the earliest of a few of them; to search on would
        make a decision long, and only the longest jobs of all are ever too late.
        """
        heap = self._heaps.get((gpu_type, gap), [])
        while heap and not self._stands(heap[0]):
            heapq.heappop(heap)
        takes_pod = self._ledger.room.takes_pod
        is_first_good = bool(heap) and takes_pod(state, heap[0].node)
        if not heap or (is_first_good and heap[0].remaining <= by):
            return heap[0] if heap else None
        # The front of a heap is unordered, but includes the cheapest offer.
        front = (o for o in heap[:GLANCE] if self._stands(o) and takes_pod(state, o.node))
        offer = _choose_offer(front, by)
        if offer is None and not is_first_good:
            rest = (o for o in heap[GLANCE:] if self._stands(o) and takes_pod(state, o.node))
            offer = next(rest, None)
        return offer

    def best_on(self, state: JobState, gpu_type: str, *, gap: int, by: float) -> Offer | None:
        """Return the same among a few nodes only, for a job whose checkpoint binds it to them."""
        known, takes_pod = self._ledger.cluster.by_name, self._ledger.room.takes_pod
        there = [
            node
            for node in state.bound_to
            if node in known and known[node].gpu_type == gpu_type and takes_pod(state, node)
        ]
        offers = (o for node in there for o in self._iter_offers(node) if self._gap(o) == gap)
        return _choose_offer(offers, by)

    def _stands(self, offer: Offer) -> bool:
        return offer.version == self._versions[offer.node]

    def collect(self, node: NodeName, gpus: int) -> list[Offer]:
        """Offers of several jobs on a node that together free ``gpus`` GPUs, the shortest first."""
        least = [o for o in self._iter_offers(node) if o.keeps == o.holding.state.least]
        chosen: list[Offer] = []
        for largest in sorted(least, key=lambda o: (o.remaining, o.order)):
            if gpus <= 0:
                break
            holding = largest.holding
            enough = [
                o
                for o in self._iter_offers(node)
                if o.holding is holding and self._frees(o) >= gpus
            ]
            chosen.append(max(enough, key=lambda o: o.keeps, default=largest))
            gpus -= self._frees(chosen[-1])
        return chosen

    def _gap(self, offer: Offer) -> int:
        return self._ledger.room.nodes[offer.node] + self._frees(offer)

    def _frees(self, offer: Offer) -> int:
        """Return how many of the GPUs that are given up another job could have."""
        holding, node = offer.holding, offer.node
        here, count = holding.nodes[node], self._ledger.count_good
        gives = min(holding.gpus - offer.keeps, here)
        if self._ledger.cluster.flawless:
            return gives
        return count(holding, {node: here})[node] - count(holding, {node: here - gives})[node]

    def _offer(self, node: NodeName) -> None:
        kind = self._ledger.cluster.by_name[node].gpu_type
        for offer in self._iter_offers(node):
            heap = self._heaps.setdefault((kind, self._gap(offer)), [])
            heapq.heappush(heap, offer)

    def _iter_offers(self, node: NodeName) -> Iterable[Offer]:
        if node not in self._versions or not self._ledger.cluster.by_name[node].schedulable:
            return
        for holding in self._on_node.get(node, {}).values():
            here = holding.nodes[node]
            for keeps in holding.state.job.gpus.options:
                if keeps >= holding.gpus:
                    break
                gives = holding.gpus - keeps
                if gives <= here or find_home(holding.nodes, keeps, leaves=node) is not None:
                    nodes = len(holding.nodes) - (gives == here) if gives <= here else 1
                    shape = Shape(keeps, nodes, holding.gpu_type)
                    after = holding.remaining_with(shape)
                    yield Offer(
                        after - holding.remaining if math.isfinite(after) else 0.0,
                        after,
                        holding.state.order,
                        node,
                        keeps,
                        self._versions[node],
                        holding,
                    )


def _choose_offer(offers: Iterable[Offer], by: float) -> Offer | None:
    """The cheapest of those done in time; if none is, the earliest."""
    return min(offers, key=lambda o: (max(by, o.remaining), *o[:5]), default=None)
