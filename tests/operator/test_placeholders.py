"""Which placeholder pods there shall be, and from when on the GPUs of a node are ours."""

import re

import pytest

from dloperator.mirror import Name
from dloperator.placeholders import (
    Drop,
    Make,
    PlaceholderSettings,
    Supply,
    is_taken,
    make_placeholder,
    next_steps,
    placeholder_name,
    why_not_ours,
)
from dloperator.podmaking import RESTRICTED

SETTINGS = PlaceholderSettings()
HERE = "dljob-system"
TAKEN = "0/2 nodes are available: 1 Insufficient nvidia.com/gpu, 1 node(s) didn't match affinity."


def supply(capacity=8, *, labelled=8, allocatable=None):
    return Supply("n1", labelled, capacity, capacity if allocatable is None else allocatable)


def placeholder(gpus=8, phase="Running", *, refused="", deleted=False, image=SETTINGS.image):
    pod = make_placeholder(
        {"name": "n1", "uid": "of-n1"}, gpus, HERE, PlaceholderSettings(image=image)
    )
    pod["metadata"]["uid"] = "its-uid"
    if deleted:
        pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
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
        (supply(labelled=0), placeholder(), ""),
        (supply(labelled=4), placeholder(), ""),
        (supply(), None, "is to be made"),
        (supply(0), None, "offers no nvidia.com/gpu"),
        (supply(4), placeholder(4), "tell of 8 GPUs, and its device plugin offers 4"),
        (supply(), placeholder(phase="Pending"), "does not run yet"),
        (supply(), placeholder(phase="Pending", refused=TAKEN), "pods of others hold some"),
        (supply(), placeholder(phase="Pending", refused="no room"), r"\(no room\)"),
        (
            supply(allocatable=7),
            placeholder(phase="Pending", refused=TAKEN),
            "1 of them are not healthy",
        ),
        (supply(), placeholder(phase="Failed"), r"has ended \(Failed\)"),
        (supply(), placeholder(deleted=True), "is being deleted"),
        (supply(), placeholder(4), "offers 8 GPUs by now, and 4 are reserved"),
        (supply(8, labelled=4), placeholder(4), "offers 8 GPUs by now, and 4 are reserved"),
    ],
)
def test_gpus_are_ours_only_while_the_placeholder_runs_with_all_of_them(there, pod, why):
    said = why_not_ours(there, pod)
    assert re.search(why, said) if why else said == "", said


def test_who_waits_for_an_image_is_told_so():
    pod = placeholder(phase="Pending")
    waiting = {"reason": "ImagePullBackOff", "message": "cannot be pulled"}
    pod["status"]["containerStatuses"] = [{"state": {"waiting": waiting}}]
    assert why_not_ours(supply(), pod).endswith("(ImagePullBackOff: cannot be pulled)")
    assert not is_taken(pod)


def steps(pod=None, *, supplies=(), busy=()):
    pods = {} if pod is None else {Name(HERE, placeholder_name("n1")): pod}
    return list(next_steps({each.node: each for each in supplies}, pods, busy, SETTINGS))


MADE = [Make("n1", 8)]
KEPT: list[object] = []


@pytest.mark.parametrize(
    ("pod", "supplies", "busy", "wanted"),
    [
        (None, [supply()], [], MADE),
        (None, [supply(allocatable=7)], [], MADE),
        (None, [supply(0)], [], KEPT),
        (None, [], [], KEPT),
        (placeholder(), [supply()], [], KEPT),
        (placeholder(phase="Pending"), [supply()], [], KEPT),
        (placeholder(), [], [], "its node is given back"),
        (placeholder(), [], ["n1"], KEPT),
        (placeholder(phase="Pending"), [], ["n1"], "its node is given back"),
        (placeholder(4), [supply()], [], "its node offers 8 GPUs by now"),
        (placeholder(4), [supply()], ["n1"], KEPT),
        (placeholder(4, "Pending"), [supply()], ["n1"], "its node offers 8 GPUs by now"),
        (placeholder(phase="Failed"), [supply()], ["n1"], "it has ended"),
        (placeholder(deleted=True), [], [], KEPT),
        (placeholder(phase="Pending", image="old"), [supply()], [], "another image is set by now"),
        (placeholder(image="old"), [supply()], [], KEPT),
    ],
)
def test_a_node_is_taken_and_given_back_only_when_no_job_is_there(pod, supplies, busy, wanted):
    found = steps(pod, supplies=supplies, busy=busy)
    if isinstance(wanted, str):
        wanted = [Drop(Name(HERE, placeholder_name("n1")), "its-uid", wanted)]
    assert found == wanted


def test_a_placeholder_names_its_node_and_does_what_the_strictest_level_asks():
    settings = PlaceholderSettings(image="idle", priority_class="high", pull_secrets=("key",))
    pod = make_placeholder({"name": "n1", "uid": "u"}, 8, HERE, settings)
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


def test_no_two_nodes_share_a_name_of_placeholders():
    nodes = ["a", "b", "a.b", "n" * 200, "n" * 201, "x" * 39 + "-" + "y", "x" * 39 + ".y"]
    made = {placeholder_name(node) for node in nodes}
    assert len(made) == len(nodes)
    assert max(map(len, made)) <= 63
