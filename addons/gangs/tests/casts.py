"""Made-up nodes and gangs for decisions without a cluster."""

from collections.abc import Mapping
from typing import Any

from dljob.core.placement.amounts import PODS, WHOLE, less, total
from dljob.kube.constraints.requirements import NodeTraits, Wants
from dljob.kube.names import Name
from dljob_gangs.members import GangName, Member, Stage, World, tenant_of

SPACE = "default"


def make_machine(name: str, *, pods: int = 110, **amounts: int) -> NodeTraits:
    """A node with these amounts of each resource, in wholes."""
    has = {"cpu": 0, **amounts, PODS: pods}
    return NodeTraits(name, {each: amount * WHOLE for each, amount in has.items()})


def make_member(
    gang: str,
    number: int,
    *,
    role: str = "worker",
    roles: Mapping[str, int] | None = None,
    node: str = "",
    stage: Stage | None = None,
    created: int = 0,
    priority: int = 0,
    **amounts: int,
) -> Member:
    asked = {name: amount * WHOLE for name, amount in (amounts or {"cpu": 1}).items()}
    name = f"{gang}-{role}-{number}"
    return Member(
        uid=name,
        name=Name(SPACE, name),
        gang=GangName(SPACE, gang),
        role=role,
        roles=tuple(sorted((roles or {role: 1}).items())),
        wants=Wants(tuple(sorted((asked | {PODS: WHOLE}).items()))),
        created=f"2026-01-01T00:00:{created:02}Z",
        priority=priority,
        stage=stage or (Stage.BOUND if node else Stage.PENDING),
        node=node,
    )


def make_gang(gang: str, count: int, *, least: int | None = None, **options: Any) -> list[Member]:
    """A gang of ``count`` workers that needs at least ``least`` of them."""
    roles = {"worker": least or count}
    return [make_member(gang, number, roles=roles, **options) for number in range(count)]


def make_world(machines: list[NodeTraits], members: list[Member]) -> World:
    gangs: dict[GangName, list[Member]] = {}
    tenants: dict[str, set[str]] = {}
    used: dict[str, dict[str, int]] = {}
    for member in members:
        gangs.setdefault(member.gang, []).append(member)
        if member.stage is Stage.BOUND:
            tenants.setdefault(member.node, set()).add(tenant_of(member.gang))
            taken = used.get(member.node, {})
            used[member.node] = total((taken, dict(member.wants.amounts)))
    return World(
        {each.name: each for each in machines},
        {each.name: less(each.allocatable, used.get(each.name, {})) for each in machines},
        {node: frozenset(there) for node, there in tenants.items()},
        {gang: tuple(there) for gang, there in gangs.items()},
    )
