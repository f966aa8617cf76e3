"""
The layers of a job's GPUs, its ceiling by those that Kueue has admitted, and the state that each Workload shall have.

A layer is a number of GPUs on top of the layers below it. Kueue evicts whole Workloads, the lowest priority first, and
admits any that fits. So a layer is asked for only when all layers below it are admitted and the job would use it, and one
above a gap is given back. Kueue changes no size of an admitted Workload, so a layer in use keeps its size when the options
of the job change.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple

from dljob.core.explaining.phrases import count_gpus
from dljob.core.model import Ceiling

MOST_LAYERS: Final = 8
"""The most layers of a job: each is an object that Kueue and the operator write several times."""


class Layer(NamedTuple):
    """The GPUs of a job above ``low``, up to ``high``."""

    low: int
    high: int

    def __str__(self) -> str:
        return f"{self.low}-{self.high}"


@dataclass(frozen=True, slots=True)
class Request:
    """A Workload of a job, as Kueue shows it."""

    queue: str
    is_judged: bool = False
    """Kueue has decided about it before."""
    is_reserved: bool = False
    """It has quota."""
    is_admitted: bool = False
    is_evicted: bool = False
    """Kueue wants its quota back."""
    is_ready: bool = False
    """The operator has reported that the job trains."""
    cluster_queue: str = ""
    """The ClusterQueue that its quota is of."""
    flavor: str = ""
    """The ResourceFlavor that its quota is of."""
    nodes: frozenset[tuple[str, str]] = frozenset()
    """The labels of the nodes of this flavor."""
    reserved_at: str = ""
    """Since when it has quota, or has none."""
    priority: int = 0
    boost: int = 0
    """Kueue adds this to its priority."""
    told: str = ""
    """Why it was evicted or waits, for people."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """A job, and the GPUs that it has."""

    queue: str = ""
    """Empty: the job shall have no quota, because it is over, suspended or in no queue."""
    options: Sequence[int] = ()
    is_whole: bool = False
    """The job cannot change its number of GPUs, and has one option."""
    reach: int = sys.maxsize
    """Layers that begin here or higher are not used and not asked for; 0: the job does not start on its quota."""
    decided: int = 0
    """The GPUs that are decided for it."""
    used: int = 0
    """The GPUs that it may hold, or is to get."""
    known: int = 0
    """The ceiling in the latest decisions about the job."""
    trains: bool = False
    boost: int | None = None
    """The seconds of training that an eviction of its lowest layer would lose; ``None``: they are not published."""


class Wanted(Enum):
    """The state that a Workload shall have, where it has another."""

    ASKED = "asked"
    """It exists."""
    READY = "ready"
    """Kueue knows that the job trains; it evicts Workloads that never do, where it waits for their pods."""
    BOOSTED = "boosted"
    """Kueue knows how much work its eviction would lose."""
    CLEARED = "cleared"
    """It has no quota, and is queued again."""
    GONE = "gone"
    """It does not exist."""
    RETURNED = "returned"
    """It does not exist, because Kueue has admitted it on other nodes than the layers below it."""


def split(demand: Demand, requests: Mapping[Layer, Request]) -> tuple[Layer, ...]:
    """Return the layers of a job, from the lowest up."""
    if not demand.queue:
        return ()
    options = demand.options
    if len(options) > MOST_LAYERS:
        # Evenly, with the first and the last.
        step = (len(options) - 1) / (MOST_LAYERS - 1)
        options = [options[round(place * step)] for place in range(MOST_LAYERS)]
    layers: list[Layer] = []
    low, end = 0, options[-1]
    while low < min(end, max(demand.reach, demand.decided)):
        # One in use may reach above the options since an edit.
        in_use = (
            layer.high
            for layer, request in requests.items()
            if layer.low == low < demand.decided and request.is_admitted
        )
        high = max(in_use, default=0) or next(n for n in options if n > low)
        layers.append(Layer(low, high))
        low = high
    return tuple(layers)


def count_admitted(
    demand: Demand, layers: Sequence[Layer], requests: Mapping[Layer, Request]
) -> int:
    """Return the GPUs of the admitted layers up to the first that is not, or is for other nodes or an earlier queue."""
    top, nodes = 0, None
    for layer in layers:
        request = requests.get(layer)
        if request is None or not request.is_admitted or request.is_evicted:
            break
        if nodes not in (None, request.nodes) or _is_misplaced(demand, layer, request):
            break
        top, nodes = layer.high, request.nodes
    return top


def _is_misplaced(demand: Demand, layer: Layer, request: Request) -> bool:
    # Kueue lets no one move a Workload with quota to another queue.
    return request.queue != demand.queue and demand.decided <= layer.low


def find_ceiling(
    demand: Demand, requests: Mapping[Layer, Request], *, borrowed: int = 0
) -> Ceiling | None:
    """Return the quota of a job, of which these GPUs are borrowed; ``None`` if none holds for it."""
    if not demand.queue:
        return None
    layers = split(demand, requests)
    end, queue = demand.options[-1], demand.queue
    top = min(end, count_admitted(demand, layers, requests))
    evicted = [each for each in layers if _is_taken(requests.get(each))]
    if evicted:
        names = " and ".join(map(str, evicted))
        told = f"Kueue takes layer{'s' if len(evicted) > 1 else ''} {names} {requests[evicted[0]].told},"
        reason, told = "Evicted", f"{told} and leaves {count_gpus(top)} in queue {queue}"
    elif top < demand.decided and _is_open(layers, requests, top):
        top = min(end, demand.decided)
        reason, told = (
            "Pending",
            f"Kueue has not decided about {count_gpus(top)} in queue {queue} yet",
        )
    elif top:
        flavor = requests[layers[0]].flavor
        told = f"Kueue admits {top} of {count_gpus(end)} in queue {queue} (flavor {flavor},"
        reason, told = "Admitted", f"{told} {borrowed or 'none'} borrowed)"
    elif not layers:
        reason, told = (
            "Returned",
            f"queue {queue} has the quota back, on which the job did not start",
        )
    else:
        waits = requests[layers[0]].told if layers[0] in requests else ""
        told = f"Kueue has admitted none of {count_gpus(end)} in queue {queue} yet"
        reason, told = "Pending", f"{told}: {waits}" if waits else told
    return Ceiling(top, reason, told, is_whole=demand.is_whole)


def _is_open(layers: Sequence[Layer], requests: Mapping[Layer, Request], top: int) -> bool:
    """Return whether Kueue has still to decide about the layer above: the setting is new, or a Workload is lost."""
    request = next((requests.get(each) for each in layers if each.low == top), None)
    return request is None or not request.is_judged


def _is_taken(request: Request | None) -> bool:
    return request is not None and request.is_evicted and request.is_reserved


def find_due(demand: Demand, requests: Mapping[Layer, Request]) -> dict[Layer, Wanted]:
    """
    Return the Workloads that shall be something else than they are.

    Quota is given back only when no decision counts on it and the release of its GPUs is proven.
    """
    layers = split(demand, requests)
    top = count_admitted(demand, layers, requests)
    free_from = max(demand.used, demand.known)
    due: dict[Layer, Wanted] = {}
    for layer, request in requests.items():
        is_over = layer not in layers
        # The layers that are left have to cover what may be used.
        is_free = free_from <= layer.low or (is_over and free_from <= top)
        if is_over or layer.low > top or _is_misplaced(demand, layer, request):
            if is_free:
                due[layer] = Wanted.GONE
        elif _is_taken(request):
            if is_free:
                due[layer] = Wanted.CLEARED
        elif request.is_admitted and layer.low == top:
            if is_free:
                due[layer] = Wanted.RETURNED
        elif request.is_admitted and demand.trains and not request.is_ready:
            due[layer] = Wanted.READY
        elif request.is_admitted and not layer.low and demand.boost not in (None, request.boost):
            due[layer] = Wanted.BOOSTED
    asked = next((layer for layer in layers if layer.low == top and layer not in requests), None)
    return due if asked is None else {**due, asked: Wanted.ASKED}
