"""Algorithm 3 of the thesis for one node and a whole gang; each possible placement is found."""

from dataclasses import replace
from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from addons.gangs.tests.casts import make_gang, make_machine, make_member, make_world
from dljob.core.placement.amounts import fits, total
from dljob.kube.constraints.requirements import NodeTraits, Requirement, Taint, Term, Toleration
from dljob_gangs.members import Member, tenant_of
from dljob_gangs.placing import HIGHEST, Ground, place, score

OURS = tenant_of(make_member("ours", 0).gang)
THEIRS = tenant_of(make_member("theirs", 0).gang)


def ground(
    machines: list[NodeTraits], there: list[Member] | None = None, **changes: object
) -> Ground:
    world = make_world(machines, there or [])
    made = Ground(world.machines, world.free, world.tenants, OURS)
    return replace(made, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("tenants", "own", "points"),
    [
        ([], OURS, HIGHEST),
        ([OURS], OURS, HIGHEST),
        ([THEIRS], OURS, 0),
        ([OURS, THEIRS], OURS, 0),
        ([OURS, THEIRS], "", HIGHEST),
    ],
)
def test_score_depends_on_the_pods_of_the_node(tenants: list[str], own: str, points: int):
    assert score(tenants, own) == points


def test_pod_joins_its_own_job_as_in_the_thesis():
    # "if there are two nodes, x and y, each providing resources to pod p1 and p2 from different jobs
    # j1 and j2 […]. If a new pod, p3 of j1, is being scheduled, p3 will be hosted on x rather than y"
    machines = [make_machine("y", cpu=4), make_machine("x", cpu=4)]
    there = [make_member("ours", 1, node="x"), make_member("theirs", 2, node="y")]
    assert place([make_member("ours", 3)], ground(machines, there)).nodes == {"ours-worker-3": "x"}


def test_gang_stays_together_and_alone():
    machines = [make_machine(name, cpu=4) for name in "abc"]
    there = [make_member("theirs", 0, node="a")]
    team = [make_member("ours", 0, role="ps"), *make_gang("ours", 3)]
    nodes = place(team, ground(machines, there)).nodes
    assert nodes is not None
    assert set(nodes.values()) == {"b"}


def test_only_possible_placement_is_found():
    # Two and three on one node, three and two on the other: it is wrong to place the large ones first, or
    # to fill one node at once.
    machines = [make_machine("a", cpu=6, gpu=1), make_machine("b", cpu=6, gpu=2)]
    team = [
        make_member("ours", 0, cpu=4, gpu=1),
        make_member("ours", 1, cpu=2),
        make_member("ours", 2, cpu=3, gpu=1),
        make_member("ours", 3, cpu=3, gpu=1),
    ]
    nodes = place(team, ground(machines)).nodes
    assert nodes == {
        "ours-worker-0": "a",
        "ours-worker-1": "a",
        "ours-worker-2": "b",
        "ours-worker-3": "b",
    }


def test_taints_and_affinity_count():
    tainted = replace(make_machine("a", cpu=9), taints=(Taint("gpu", "yes", "NoSchedule"),))
    soft = replace(make_machine("b", cpu=1), taints=(Taint("x", "", "PreferNoSchedule"),))
    named = replace(make_machine("c", cpu=1), labels={"zone": "7"})
    pod = make_member("ours", 0)
    spot = Term((Requirement("zone", "Gt", ("6",)),))
    tolerant = replace(pod.wants, tolerations=(Toleration("gpu", "Equal", "yes", ""),))
    picky = replace(pod.wants, terms=(spot,))
    for wants, node in ((pod.wants, "b"), (tolerant, "a"), (picky, "c")):
        only = [tainted, soft] if node != "c" else [tainted, soft, named]
        if node == "a":
            only = [tainted]
        assert place([replace(pod, wants=wants)], ground(only)).nodes == {pod.uid: node}


amounts = st.fixed_dictionaries({"cpu": st.integers(0, 4), "gpu": st.integers(0, 2)})


@st.composite
def small_cases(draw: st.DrawFn) -> tuple[list[NodeTraits], list[Member]]:
    sizes = draw(st.lists(amounts, min_size=1, max_size=3))
    machines = [make_machine(f"n{i}", pods=3, **size) for i, size in enumerate(sizes)]
    wishes = draw(st.lists(amounts, min_size=1, max_size=4))
    members = [
        make_member("ours", number, **dict[str, Any]({name: n for name, n in asked.items() if n}))
        for number, asked in enumerate(wishes)
    ]
    return machines, members


def is_possible(machines: list[NodeTraits], members: list[Member]) -> bool:
    for choice in product(machines, repeat=len(members)):
        taken = {
            each.name: [m for m, at in zip(members, choice, strict=True) if at is each]
            for each in machines
        }
        if all(
            fits(total(dict(m.wants.amounts) for m in taken[each.name]), each.allocatable)
            for each in machines
        ):
            return True
    return False


@given(small_cases())
def test_gang_is_placed_exactly_if_it_fits(case: tuple[list[NodeTraits], list[Member]]):
    machines, members = case
    found = place(members, ground(machines))
    assert (found.nodes is not None) == is_possible(machines, members)
    assert found.is_proven
    if found.nodes is None:
        assert found.short_of in {each.name.name for each in members}
        return
    for machine in machines:
        there = [dict(m.wants.amounts) for m in members if found.nodes[m.uid] == machine.name]
        assert fits(total(there), machine.allocatable)
