"""The worth of a job on nodes, the cost of the change counted: by it places are compared."""

from dljob.core.placement.counting import count_nodes
from dljob.core.policies.foresight.bids import Bid
from dljob.core.policies.foresight.curves import Curve
from dljob.core.policies.foresight.placing.sites import Nodes, Removal, Sites
from dljob_wire.messages import Shape


class Appraiser:
    """Says what a second of a job is worth."""

    def __init__(self, sites: Sites, *, horizon: float) -> None:
        """``horizon`` says for how many seconds at most a change is expected to pay."""
        self._sites = sites
        self._cluster = sites.view.cluster
        self._predictor = sites.view.predictor
        self._horizon = horizon

    def worth(self, bid: Bid, nodes: Nodes) -> float:
        """The worth of a second of this job on these nodes, the cost of the change included."""
        gpus = sum(nodes.values())
        curve = bid.curve_on(self._find_type(nodes)) or bid.curve
        speed = self._speed(bid, Shape(gpus, len(nodes), curve.gpu_type), curve=curve)
        held = bid.state.placement
        if held is not None and count_nodes(held) == nodes:
            return bid.worth(speed, cost=0.0, horizon=self._horizon)
        return bid.worth(speed, cost=bid.cost_of(gpus), horizon=self._horizon)

    def _find_type(self, nodes: Nodes) -> str:
        return self._cluster.by_name[next(iter(nodes))].gpu_type

    def _speed(self, bid: Bid, shape: Shape, *, curve: Curve) -> float:
        if shape.nodes <= self._predictor.shape(shape.gpus, shape.gpu_type).nodes:
            return curve.speeds.get(shape.gpus, 0.0)
        known = self._predictor.speed(bid.state.job, shape)
        return known if known > 0.0 else curve.speeds.get(shape.gpus, 0.0)

    def worth_now(self, bid: Bid) -> float:
        """Return the same on the nodes that were decided for it so far."""
        holding = self._sites.holdings.get(bid.state.id)
        return self.worth(bid, holding.nodes) if holding is not None else 0.0

    def count_loss(self, removal: Removal) -> float:
        """The loss of worth a second of a job that makes room, compared with staying."""
        bid, nodes = removal
        return max(0.0, self.worth_now(bid) - self.worth(bid, nodes))
