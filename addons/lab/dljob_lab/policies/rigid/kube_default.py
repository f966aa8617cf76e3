"""The default scheduler of Kubernetes as the SideCar paper plays it."""

import hashlib
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

from dljob.core.checking import Law
from dljob.core.contract import Decision, View
from dljob.core.model import JobState
from dljob.core.placement.free_gpus import Fit, Room
from dljob.core.policies.common import ordering
from dljob_lab.policies.common.nodes import choices_of_types, find_along, nodes_of


@dataclass(frozen=True, slots=True)
class KubeDefault:
    """
    A fixed number of GPUs, drawn at random from the options; a job that fits starts, and no job
    changes.

    Wang et al. (SideCar), section V.B: "the number of GPUs allocated to each job is randomly
    chosen from the optional numbers"; section VI.A: while a job of 8 waits, one of 2 is scheduled
    before it.

    Where the paper leaves room: the draw depends on the seed and the name of the job only; options
    that the cluster could never give are not drawn. Like Kubernetes it spreads: a job goes to the
    emptiest node of any type, and to several only where one does not suffice and the job may be on
    several.
    """

    name: ClassVar[str] = "kube-default"
    paper: ClassVar[str] = "SideCar (Wang et al.), V.B and VI.A (baseline)"
    needs: ClassVar[str] = "nothing"
    breaks: ClassVar[frozenset[Law]] = frozenset()

    def allocate(self, view: View) -> Decision:
        return ordering.admit(view, passing=True, count=count_drawn, find=find_emptiest)


def count_drawn(state: JobState, view: View) -> int:
    """The number of GPUs drawn for this job, always the same one."""
    options = state.job.gpus.options
    gpus = draw(view.seed, state.id, options)
    largest = ordering.largest_option(state, view.cluster)
    if gpus <= largest:
        return gpus
    return draw(view.seed, state.id, options[: options.index(largest) + 1])


# Asked for every waiting job at every decision.
@lru_cache(maxsize=65536)
def draw(seed: int, job: str, options: tuple[int, ...]) -> int:
    """Draw evenly; the same in every process, which Python's own hash is not."""
    digest = hashlib.sha256(f"{seed}/{job}".encode()).digest()
    return options[int.from_bytes(digest[:8]) % len(options)]


def find_emptiest(room: Room, state: JobState, gpus: int, view: View) -> Fit | None:
    """The emptiest nodes first; a mixture of types only for a job that finds no single one."""
    best: tuple[int, Fit] | None = None
    for kinds in choices_of_types(state, view.cluster):
        if sum(room.free[kind] for kind in kinds) < gpus or (len(kinds) > 1 and best is not None):
            continue
        nodes = list(nodes_of(state, kinds, cluster=view.cluster))
        nodes.sort(key=lambda node: -room.nodes[node])
        fit = find_along(nodes, room, state=state, gpus=gpus)
        if fit is not None and (best is None or room.nodes[nodes[0]] > best[0]):
            best = room.nodes[nodes[0]], fit
    return best[1] if best is not None else None
