"""Which placeholder pods shall exist, and when the GPUs of a node are ours."""

import asyncio
import re
from collections.abc import Callable
from typing import Any

import pytest

from dljob.kube.names import Name
from dljob.kube.watches.mirror import Mirrors
from dljob.operator.jobs.entries import Specs
from dljob.operator.nodes.nodes import Pool
from dljob.operator.nodes.ownership import OwnershipRules
from dljob.operator.nodes.placeholders import (
    Drop,
    Make,
    PlaceholderSettings,
    PoolMode,
    Supply,
    is_lost,
    make_placeholder,
    next_steps,
    placeholder_name,
    why_not_ours,
)
from dljob.operator.nodes.reserving import Reservations
from dljob.operator.pods.cleanup import Cleanup
from dljob.operator.podspecs.podsettings import RESTRICTED
from tests.loops import on_loop
from tests.operator.leaders import trusting
from tests.servers.nodes import make_node

SETTINGS = PlaceholderSettings()
HERE = "dljob-system"
TAKEN = "0/2 nodes are available: 1 Insufficient nvidia.com/gpu, 1 node(s) didn't match affinity."


def supply(capacity=8, *, labelled=8, allocatable=None):
    return Supply("n1", labelled, capacity, capacity if allocatable is None else allocatable)


def placeholder(gpus=8, phase="Running", *, number=0, refused="", deleted=0, image=SETTINGS.image):
    step, settings = Make("n1", gpus, number), PlaceholderSettings(image=image)
    pod = make_placeholder({"name": "n1", "uid": "of-n1"}, step, namespace=HERE, settings=settings)
    pod["metadata"]["uid"] = "its-uid"
    if deleted:
        pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
        pod["metadata"]["deletionGracePeriodSeconds"] = deleted
    pod["status"] = {"phase": phase}
    if refused:
        condition = {"type": "PodScheduled", "status": "False", "message": refused}
        pod["status"]["conditions"] = [condition]
    return pod


@pytest.mark.parametrize(
    ("there", "pod", "why"),
    [
        (supply(), placeholder(), ""),
        (supply(allocatable=7), placeholder(), ""),
        (supply(allocatable=7), placeholder(7), ""),
        (supply(allocatable=0), placeholder(7), "none of its 8 GPUs is healthy"),
        (supply(labelled=0), placeholder(), ""),
        (supply(labelled=4), placeholder(), ""),
        (supply(), None, "is about to create"),
        (supply(0), None, "offers no nvidia.com/gpu"),
        (supply(4), placeholder(4), "name 8 GPUs, and its device plugin offers 4"),
        (supply(), placeholder(phase="Pending"), "does not run yet"),
        (supply(), placeholder(phase="Pending", refused=TAKEN), "other pods hold some"),
        (supply(), placeholder(phase="Pending", refused="no room"), r"\(no room\)"),
        (
            supply(allocatable=7),
            placeholder(phase="Pending", refused=TAKEN),
            "1 of them are not healthy",
        ),
        (supply(), placeholder(phase="Failed"), r"has ended \(Failed\)"),
        (supply(), placeholder(deleted=900), "is being deleted"),
        (supply(), placeholder(4), "offers 8 GPUs, and only 4 are reserved; the operator is"),
        (supply(8, labelled=4), placeholder(4), "offers 8 GPUs, and only 4 are reserved"),
    ],
)
def test_gpus_are_ours_while_placeholders_hold_all(there, pod, why):
    said = why_not_ours(there, [] if pod is None else [pod])
    assert re.search(why, said) if why else said == "", said


def test_jobs_leave_lost_nodes():
    assert is_lost([placeholder(), placeholder(1, "Pending", number=1, refused=TAKEN)])
    assert is_lost([placeholder(deleted=900)])
    assert not is_lost([placeholder(), placeholder(1, "Pending", number=1)])


def test_recovered_gpu_gets_another_placeholder():
    first, second = placeholder(7), placeholder(1, number=1)
    assert "8 GPUs, and only 7 are reserved" in why_not_ours(supply(), [first])
    assert steps(first, supplies=[supply()], busy=["n1"]) == [Make("n1", 1, 1)]
    assert why_not_ours(supply(), [first, second]) == ""
    assert first["metadata"]["name"] != second["metadata"]["name"]
    assert steps(first, second, supplies=[supply()], busy=["n1"]) == []
    waiting = placeholder(1, "Pending", number=1)
    assert "does not run yet" in why_not_ours(supply(), [first, waiting])
    assert steps(first, waiting, supplies=[supply()], busy=["n1"]) == []
    # The first one is gone while the second one stays: its name is free.
    assert steps(second, supplies=[supply()], busy=[]) == [Make("n1", 7, 0)]


def test_deleted_placeholder_waits_for_the_jobs():
    pod = placeholder(deleted=900)
    spec = pod["spec"]
    (hold,) = [each["lifecycle"]["preStop"]["sleep"]["seconds"] for each in spec["containers"]]
    assert spec["terminationGracePeriodSeconds"] > hold == SETTINGS.hold_seconds
    assert steps(pod, supplies=[supply()], busy=["n1"]) == []
    (drop,) = steps(pod, supplies=[supply()], busy=[])
    assert isinstance(drop, Drop)
    assert steps(placeholder(deleted=1), supplies=[supply()], busy=[]) == []


def steps(*there, supplies=(), busy=()):
    pods = {Name(HERE, pod["metadata"]["name"]): pod for pod in there if pod is not None}
    return list(
        next_steps({each.node: each for each in supplies}, pods, busy=busy, settings=SETTINGS)
    )


MADE = [Make("n1", 8)]
KEPT: list[object] = []


@pytest.mark.parametrize(
    ("pod", "supplies", "busy", "wanted"),
    [
        (None, [supply()], [], MADE),
        (None, [supply(allocatable=7)], [], [Make("n1", 7)]),
        (None, [supply(allocatable=0)], [], KEPT),
        (None, [supply(0)], [], KEPT),
        (None, [], [], KEPT),
        (placeholder(), [supply()], [], KEPT),
        (placeholder(phase="Pending"), [supply()], [], KEPT),
        (placeholder(), [], [], "its node is given back"),
        (placeholder(), [], ["n1"], KEPT),
        (placeholder(phase="Pending"), [], ["n1"], "its node is given back"),
        (placeholder(), [supply(allocatable=7)], [], KEPT),
        (placeholder(4), [supply()], ["n1"], [Make("n1", 4, 1)]),
        (placeholder(4, "Pending"), [supply()], ["n1"], KEPT),
        (
            placeholder(8, "Pending"),
            [supply(allocatable=7)],
            ["n1"],
            "its node offers 7 GPUs instead",
        ),
        (placeholder(phase="Failed"), [supply()], ["n1"], "it has ended"),
        (placeholder(deleted=1), [], [], KEPT),
        (
            placeholder(phase="Pending", image="old"),
            [supply()],
            [],
            "the setting names another image",
        ),
        (placeholder(image="old"), [supply()], [], KEPT),
    ],
)
def test_node_is_taken_or_returned_only_without_jobs(pod, supplies, busy, wanted):
    found = steps(pod, supplies=supplies, busy=busy)
    if isinstance(wanted, str):
        wanted = [Drop(Name(HERE, placeholder_name("n1")), "its-uid", wanted)]
    assert found == wanted


def test_placeholder_names_its_node_and_is_restricted():
    settings = PlaceholderSettings(image="idle", priority_class="high", pull_secrets=("key",))
    pod = make_placeholder(
        {"name": "n1", "uid": "u"}, Make("n1", 8), namespace=HERE, settings=settings
    )
    spec, (container,) = pod["spec"], pod["spec"]["containers"]
    assert "nodeName" not in spec
    (term,) = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"][
        "nodeSelectorTerms"
    ]
    assert term["matchFields"] == [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]
    assert container["securityContext"] == RESTRICTED
    assert container["resources"]["limits"] == container["resources"]["requests"]
    assert container["resources"]["requests"]["nvidia.com/gpu"] == "8"
    assert (container["image"], spec["priorityClassName"]) == ("idle", "high")
    assert spec["imagePullSecrets"] == [{"name": "key"}]
    assert "priorityClassName" not in placeholder()["spec"]


def test_placeholder_names_are_unique():
    nodes = ["a", "b", "a.b", "n" * 200, "n" * 201, "x" * 39 + "-" + "y", "x" * 39 + ".y"]
    made = {placeholder_name(node) for node in nodes}
    assert len(made) == len(nodes)
    assert max(map(len, made)) <= 63


class Api:
    """An API server that records creations and deletions."""

    def __init__(self) -> None:
        self.made: list[str] = []
        self.deleted: list[str] = []
        self.was_asked = asyncio.Event()

    async def create(self, _resource, document, _namespace):
        self.made.append(document["metadata"]["name"])
        self.was_asked.set()
        return {**document, "metadata": {**document["metadata"], "resourceVersion": "9"}}

    async def delete(self, _resource, name, _namespace, *, uid, grace_seconds):
        assert (uid, grace_seconds) == ("its-uid", 1)
        self.deleted.append(name)


def reservations_of(
    api: Any, mirrors: Mirrors, ask_for_cleanup: Callable[[], None] = lambda: None
) -> Reservations:
    return Reservations(
        api,
        mirrors,
        jobs=trusting(mirrors),
        namespace=HERE,
        pool=Pool(mode=PoolMode.RESERVE),
        rules=OwnershipRules("", ""),
        ask_for_cleanup=ask_for_cleanup,
    )


def test_node_that_leaves_the_pool_is_returned():
    api, mirrors = Api(), Mirrors()
    pod = placeholder()
    pod["metadata"]["resourceVersion"] = "1"
    mirrors.pods.show(pod)
    looks: list[bool] = []
    # The cleanup looks as soon as it is requested.
    reservations = reservations_of(
        api, mirrors, lambda: looks.append(asyncio.run(reservations.reconcile()))
    )
    for why in ("", "", "it has another label"):
        reservations.note({"n1": why})
        assert api.deleted == [], "the last decision may not be recorded yet"
    reservations.note({"n1": "it has another label"})
    assert api.deleted == [placeholder_name("n1")]
    count = len(looks)
    reservations.note({"n1": "it has another label"})
    assert len(looks) == count, "nothing is left to do"


@on_loop
async def test_new_leader_looks_at_once():
    there: Any = Api()
    mirrors = Mirrors()
    node = make_node("n1", labels={"dljob.io/pool": ""}, capacity={"nvidia.com/gpu": "8"})
    node["metadata"] |= {"resourceVersion": "1", "uid": "of-n1"}
    mirrors.nodes.show(node)
    cleanup = Cleanup(
        there,
        mirrors,
        jobs=trusting(mirrors),
        changed=asyncio.Event(),
        specs=Specs(),
        reservations=reservations_of(there, mirrors),
        warn=lambda *_: None,
    )
    running = asyncio.create_task(cleanup.run())
    await there.was_asked.wait()
    assert there.made == [placeholder_name("n1")]
    running.cancel()
