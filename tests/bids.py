"""Short ways to make the bids that ``foresight`` prices and chooses between."""

from collections.abc import Iterable, Mapping
from typing import Any

from dljob.core.policies.foresight.bids import Bid
from dljob.core.policies.foresight.curves import make_curve
from tests.builders import make_placement, make_state


def make_bid(
    name: str = "job",
    speeds: Mapping[int, float] | None = None,
    *,
    left: float = 1000.0,
    weight: float = 1.0,
    price: float = 1.0,
    cost: float = 0.0,
    order: int = 0,
    holds: int = 0,
    gpu_type: str = "",
    types: Mapping[str, Mapping[int, float]] | None = None,
    **rest: Any,
) -> Bid:
    """
    Make the bid of a job with these speeds by number of GPUs, on one type or on several.

    It holds ``holds`` GPUs of ``gpu_type`` on one node; each change of it takes ``cost`` seconds.
    The ``rest`` is further knowledge of the job.
    """
    by_type = types or {gpu_type: speeds or {1: 1.0, 2: 1.5, 4: 2.0}}
    options = tuple(sorted({gpus for each in by_type.values() for gpus in each}))
    placement = make_placement(gpu_type, n1=range(holds)) if holds else None
    state = make_state(name, options=options, order=order, holds=placement, **rest)
    curves = [make_curve(kind, each.items()) for kind, each in by_type.items()]
    bid = Bid(state, tuple(curve for curve in curves if curve is not None))
    bid.curve = next((c for c in bid.curves if c.gpu_type == gpu_type), bid.curves[0])
    bid.left, bid.weight, bid.price = left, weight, price
    bid.change_costs = bid.restart_costs = dict.fromkeys(options, cost)
    return bid


def make_bids(count: int, speeds: Mapping[int, float], **rest: Any) -> list[Bid]:
    """Make ``count`` bids that differ in nothing but their name and their place in the queue."""
    return [make_bid(f"job{n}", speeds, order=n, **rest) for n in range(count)]


def list_prices(bids: Iterable[Bid]) -> list[float]:
    return [bid.price for bid in bids]
