"""Gangs on a real control plane: kube-scheduler asks the extender, and binds the pods that it passes."""

import pytest

from addons.gangs.tests.troupes import GANG, ROLE, ROLES, Troupe

pytestmark = [pytest.mark.cluster, pytest.mark.processes]

PARTS = {"scheduler": 1, "server": 1, "worker": 1}
"""The tasks of the jobs in the thesis."""
SLOT = {"cpu": "1"}
FOUR = {"cpu": "4"}


def interleaved(troupe: Troupe, scheduler: str, roles: list[str]) -> list[str]:
    """Create pods of two jobs in turn, so that neither is ahead."""
    return [
        troupe.create(troupe.make_member(gang, role, roles=PARTS, scheduler=scheduler))
        for role in roles
        for gang in ("a", "b")
    ]


def test_two_halves_deadlock_without_the_plugin(troupe: Troupe):
    troupe.add_nodes({f"slot{number}": SLOT for number in range(4)})
    first = interleaved(troupe, "default-scheduler", ["scheduler", "server"])
    troupe.wait_bound(first)
    last = interleaved(troupe, "default-scheduler", ["worker"])
    for name in last:
        troupe.wait_told("FailedScheduling", "Insufficient cpu", name)
    # Neither can begin, and neither releases its room: the deadlock of the thesis.
    assert set(troupe.bound()) == set(first)
    # Users who asked for a gang in vain can read the reason.
    troupe.wait_told("GangInvalid", "set spec.schedulerName: dljob-scheduler", last[0])


@pytest.mark.story
def test_both_jobs_finish_in_turn_with_the_plugin(troupe: Troupe):
    troupe.add_nodes({f"slot{number}": SLOT for number in range(4)})
    interleaved(troupe, "dljob-scheduler", ["scheduler", "server"])
    troupe.wait_told("FailedScheduling", "waits for pods that are missing: 1 of role worker")
    assert troupe.bound() == {}, "half of a gang gets nothing"
    interleaved(troupe, "dljob-scheduler", ["worker"])
    ours = [f"a-{role}-0" for role in PARTS]
    theirs = [f"b-{role}-0" for role in PARTS]
    troupe.wait_bound(ours)
    troupe.wait_told("GangWaiting", "its 3 pods do not all fit on what is free")
    troupe.wait_told("FailedScheduling", "gang b waits", "b-server-0")
    assert set(troupe.bound()) == set(ours), "although one slot is left"
    troupe.finish(ours)
    troupe.wait_bound(theirs)
    troupe.finish(theirs)
    assert troupe.plugin.metric('dljob_gang_answers_total{answer="admitted"}') >= 6


def test_impossible_gang_says_so_and_delays_no_other(troupe: Troupe):
    troupe.add_nodes({"x": FOUR, "y": FOUR})
    pods = troupe.create_gang("big", {"worker": 3}, cpu="3")
    told = troupe.wait_told("GangNeverFits", "gang big can never fit", pods[0])
    assert "ask for fewer or smaller pods, or add nodes" in told["message"]
    vast = troupe.create_gang("vast", {"worker": 1}, cpu="5")
    # kube-scheduler itself finds no node, and so never asks about it.
    told = troupe.wait_told("GangNeverFits", "pod vast-worker-0 asks for 5 cpu", vast[0])
    assert "has at most 4 cpu" in told["message"]
    assert told["type"] == "Warning"
    small = troupe.create_gang("small", {"worker": 2})
    troupe.wait_bound(small)


def test_killed_extender_forgets_nothing_important(troupe: Troupe):
    troupe.add_nodes({"x": FOUR, "y": FOUR})
    plugin = troupe.plugin
    plugin.scheduler.stop()
    first = troupe.create_gang("first", {"ps": 1, "worker": 5})
    plugin.wait_for("dljob_gang_pods_held", 6.0)
    for name in first[:3]:
        target = {"apiVersion": "v1", "kind": "Node", "name": troupe.node("x")}
        troupe.api.post(f"{troupe.path(name)}/binding", binding(name, target))
    plugin.wait_for("dljob_gang_pods_held", 3.0)
    plugin.extender.kill()
    second = troupe.create_gang("second", {"worker": 4})
    plugin.scheduler.start()
    # The extender does not answer: pods of gangs wait, and are tried again.
    troupe.wait_told("FailedScheduling", "connection refused", second[0])
    assert set(troupe.bound()) == set(first[:3])
    plugin.extender.start()
    troupe.wait_bound(first)
    troupe.wait_told("GangWaiting", "its 4 pods do not all fit", second[0])
    troupe.finish(first)
    troupe.wait_bound(second)


def binding(name: str, target: dict[str, str]) -> dict[str, object]:
    return {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name}, "target": target}


def test_wrong_pod_is_reported_with_the_remedy(troupe: Troupe):
    troupe.add_nodes({"x": FOUR})
    pod = troupe.make_pod("wrong")
    pod["metadata"]["labels"] = {GANG: "g", ROLE: "chief"}
    pod["metadata"]["annotations"] = {ROLES: '{"worker": 2}'}
    troupe.create(pod)
    words = "use one of worker, or add the role there"
    assert troupe.wait_told("GangInvalid", words, "wrong")["type"] == "Warning"
    # The pod's Events show the error twice, and the pod is not scheduled.
    troupe.wait_told("FailedScheduling", words, "wrong")
    assert troupe.bound() == {}
    troupe.create(troupe.make_member("g", "worker", 0, roles={"worker": 1}))
    troupe.wait_bound(["g-worker-0"])
    troupe.create(troupe.make_member("g", "worker", 1, roles={"worker": 2}))
    troupe.wait_told("GangInvalid", "give all of them the same annotation", "g-worker-1")


def test_refusals_of_kube_scheduler_are_learnt(troupe: Troupe):
    troupe.add_nodes({"x": FOUR, "y": FOUR})
    selector = {"matchLabels": {GANG: "g"}}
    term = {"topologyKey": "kubernetes.io/hostname", "labelSelector": selector}
    apart = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    names = []
    for number in range(2):
        pod = troupe.make_member("g", "worker", number, roles={"worker": 2})
        pod["spec"]["affinity"] = apart
        names.append(troupe.create(pod))
    # Both would fit on one node, where they are planned first.
    assert sorted(troupe.wait_bound(names).values()) == ["x", "y"]


def test_many_gangs_pass_few_slots_whole_and_in_order(troupe: Troupe):
    troupe.add_nodes({"x": {"cpu": "3"}, "y": {"cpu": "3"}})
    gangs = [f"g{number}" for number in range(6)]
    roles = {"ps": 1, "worker": 2}
    # The first pods define the order; the others come in any order.
    for gang in gangs:
        troupe.create(troupe.make_member(gang, "ps", roles=roles))
    for gang in gangs:
        for number in (1, 0):
            troupe.create(troupe.make_member(gang, "worker", number, roles=roles))
    finished: list[str] = []

    def play() -> bool:
        bound = troupe.bound()
        for gang in gangs:
            members = [name for name in bound if name.startswith(gang)]
            if len(members) == 3:
                assert len({bound[name] for name in members}) == 1
                # There is room for two, which may be bound in any order.
                assert len(set(gangs[: gangs.index(gang)]) - set(finished)) <= 1
                troupe.finish(members)
                finished.append(gang)
        return len(finished) == len(gangs)

    troupe.wait(play)
