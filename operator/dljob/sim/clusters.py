"""
The cluster of a simulation, from the command line.

:mod:`dljob.cli` calls it, before anything else is read. Two ways to place jobs are two ways to build
nodes: where GPUs are only counted, one node holds all of a type, and jobs fit as long as
their sum does.
"""

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from dljob.core.model import Node

GPUS_PER_NODE = 8
"""The size of the nodes of ``--gpus N``; the last one takes the rest."""

MOST_GPUS = 1_000_000
"""Beyond this a number is a slip, and would only use up the memory."""

_PART = re.compile(r"(\d{1,7})[xX](\d{1,7})(?::([A-Za-z0-9][\w.-]*))?", re.ASCII)


class Machines(NamedTuple):
    """Some nodes that are alike."""

    nodes: int
    gpus: int
    gpu_type: str = ""


def parse_cluster(text: str) -> tuple[Machines, ...]:
    """
    Read ``NODESxGPUS[:TYPE][,…]``, for example ``2x8:V100,1x4:K80``.

    Raises :class:`ValueError` with the mistake and the remedy.
    """
    machines = tuple(_parse_part(part.strip()) for part in text.split(","))
    _check_size(sum(each.nodes * each.gpus for each in machines))
    return machines


def _parse_part(text: str) -> Machines:
    match = _PART.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not NODESxGPUS[:TYPE]; write for example 4x8 or 2x8:V100")
    nodes, gpus = int(match[1]), int(match[2])
    if not nodes or not gpus:
        raise ValueError(f"{text!r} has no GPUs; write for example 4x8 or 2x8:V100")
    return Machines(nodes, gpus, match[3] or "")


def fill_nodes(gpus: int) -> tuple[Machines, ...]:
    """Put ``gpus`` GPUs on nodes of eight, of which the last may be smaller."""
    if gpus < 1:
        raise ValueError(f"{gpus} GPUs train nothing; give at least 1")
    _check_size(gpus)
    whole, rest = divmod(gpus, GPUS_PER_NODE)
    parts = (Machines(whole, GPUS_PER_NODE), Machines(1 if rest else 0, rest))
    return tuple(part for part in parts if part.nodes)


def _check_size(gpus: int) -> None:
    if gpus > MOST_GPUS:
        raise ValueError(f"{gpus} GPUs are more than {MOST_GPUS}; give a smaller cluster")


def build_packed(machines: Iterable[Machines]) -> tuple[Node, ...]:
    """
    Build the nodes as they are, named ``node-0``, ``node-1`` and so on.

    Numbers are padded with zeros where there are more than ten, because nodes are sorted by name.
    """
    kinds = list(_iter_nodes(machines))
    digits = len(str(len(kinds) - 1))
    return tuple(
        Node.of(f"node-{index:0{digits}}", gpus, kind) for index, (gpus, kind) in enumerate(kinds)
    )


def _iter_nodes(machines: Iterable[Machines]) -> Iterator[tuple[int, str]]:
    for nodes, gpus, kind in machines:
        for _ in range(nodes):
            yield gpus, kind


def build_counted(machines: Iterable[Machines]) -> tuple[Node, ...]:
    """Build one node for each type, with all the GPUs of it."""
    totals: dict[str, int] = {}
    for nodes, gpus, kind in machines:
        totals[kind] = totals.get(kind, 0) + nodes * gpus
    return tuple(Node.of(f"all-{kind}" if kind else "all", n, kind) for kind, n in totals.items())
