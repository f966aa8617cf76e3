"""Jobs leave a node before an eviction: at known taints, a driver's upgrade, and a lasting cordon."""

from typing import Any

import pytest

from dljob.operator.nodes.reading import Notices
from tests.servers.nodes import make_node


def node(*, taint: str = "", state: str = "", cordoned: bool = False) -> dict[str, Any]:
    labels = {"nvidia.com/gpu-driver-upgrade-state": state} if state else {}
    taints = [{"key": taint, "value": "preempt", "effect": "NoSchedule"}] if taint else []
    document = make_node("n1", labels=labels, taints=taints)
    document["spec"]["unschedulable"] = cordoned
    return document


@pytest.mark.parametrize(
    ("document", "why"),
    [
        (node(), ""),
        (node(taint="dljob.io/pool"), ""),
        (node(taint="karpenter.sh/disrupted"), "taint karpenter.sh/disrupted="),
        (node(taint="aws-node-termination-handler/spot-itn"), "spot-itn"),
        (node(taint="dljob.io/ending"), "taint dljob.io/ending=preempt says"),
        (node(taint="lab/works"), "taint lab/works"),
        (node(state="upgrade-done"), ""),
        (node(state="cordon-required"), "cordon-required"),
        (node(state="wait-for-jobs-required"), "its driver is to be replaced"),
    ],
)
def test_notice_announces_an_eviction(document, why):
    said = Notices(("lab/works",), 60.0).why_leave(document)
    assert (why in said) if why else said == ""


def test_lasting_cordon_is_a_notice():
    now = [0.0]
    notices = Notices((), 60.0, clock=lambda: now[0])
    assert notices.why_leave(node(cordoned=True)) == ""
    now[0] = 59.0
    assert notices.why_leave(node(cordoned=True)) == ""
    now[0] = 60.0
    assert "cordoned for 60 s" in notices.why_leave(node(cordoned=True))
    # An uncordon reports that a node is repaired.
    assert notices.why_leave(node()) == ""
    assert notices.why_leave(node(cordoned=True)) == ""
    never = Notices((), 0.0, clock=lambda: now[0])
    assert never.why_leave(node(cordoned=True)) == ""
    now[0] = 10_000.0
    assert never.why_leave(node(cordoned=True)) == ""
