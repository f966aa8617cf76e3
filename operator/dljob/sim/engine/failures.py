"""
Nodes that fail and come back, from a file (``--failures``).

Called by :mod:`dljob.cli` once the cluster is known. The file is CSV with the columns
``time_s,node,event``, where the event is ``lost`` or ``back``.
"""

from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path

from dljob.core.model import NodeName
from dljob.sim.engine.settings import Outage
from dljob.sim.inputs.tables import Row, Table

EVENTS = ("lost", "back")


def read_failures(path: Path, nodes: Collection[NodeName]) -> tuple[Outage, ...]:
    """Read the file, or raise :class:`~dljob.sim.errors.BadInput` for what does not make sense."""
    table = Table.read(path, required=("time_s", "node", "event"))
    told = [(row.seconds("time_s"), row) for row in table]
    outages: list[Outage] = []
    open_since: dict[NodeName, Outage] = {}
    for time, row in sorted(told, key=lambda each: each[0]):
        node = _read_node(row, nodes)
        if _read_event(row) == "back":
            _check_lost(row, node, lost=open_since)
            outages.append(replace(open_since.pop(node), back_at=time))
        else:
            _check_up(row, node, lost=open_since)
            open_since[node] = Outage(node, time)
    return tuple(sorted((*outages, *open_since.values()), key=lambda each: each.lost_at))


def _read_node(row: Row, nodes: Collection[NodeName]) -> NodeName:
    name = NodeName(row.name("node"))
    if name not in nodes:
        raise row.error(
            f"the cluster has no node {str(name)!r}",
            field="node",
            remedy=f"its nodes are {min(nodes)} to {max(nodes)}",
        )
    return name


def _read_event(row: Row) -> str:
    event = row.text("event")
    if event not in EVENTS:
        raise row.error(f"{event!r} is no event", field="event", remedy="write lost or back")
    return event


def _check_lost(row: Row, node: NodeName, *, lost: Mapping[NodeName, Outage]) -> None:
    if node not in lost:
        raise row.error(
            f"{node} comes back but was not lost before",
            field="event",
            remedy="add the row that says when it was lost",
        )


def _check_up(row: Row, node: NodeName, *, lost: Mapping[NodeName, Outage]) -> None:
    if node in lost:
        raise row.error(
            f"{node} is lost already, since {lost[node].lost_at:g} s",
            field="event",
            remedy="add the row that says when it came back",
        )
