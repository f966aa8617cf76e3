"""Nodes that are lost for a while or for good; none of their GPUs is given away without a proof."""

from pathlib import Path

import pytest

from tests.cluster.jobs import as_text, replay
from tests.cluster.looking import View
from tests.servers.realnodes import is_ready

pytestmark = pytest.mark.nodes


def test_job_trains_on_while_its_kubelet_is_away(view: View, saved: Path):
    view.cluster.give_gpus(node2=1)
    view.kubectl("apply", "-f", "-", stdin=as_text(replay("job", [1], saved)))
    view.wait_gpus("job", node2=1)
    [before] = view.pods("job")
    trainings = view.trainings(before.name)
    node = view.cluster.nodes["node2"]
    # As in an update: the kubelet restarts before the control plane notices.
    node.kubelet.kill()
    node.kubelet.start()
    node.kubelet.kill()
    try:
        view.wait(lambda: not is_ready(view.cluster.plane, "node2"), what="that the node is missed")
        view.wait_event("job", "NodeLost")
    finally:
        node.kubelet.start()
    view.wait(lambda: is_ready(view.cluster.plane, "node2"), what="the node")
    view.wait_gpus("job", node2=1)
    assert [pod.identity for pod in view.pods("job")] == [before.identity]
    assert view.trainings(before.name) == trainings


def test_job_of_a_lost_machine_moves_after_confirmation(view: View, saved: Path):
    view.cluster.give_gpus(node2=1)
    view.kubectl("apply", "-f", "-", stdin=as_text(replay("job", [1], saved)))
    view.wait_gpus("job", node2=1)
    reached = view.save("job", saved)
    view.cluster.give_gpus(node1=1, node2=1)
    node = view.cluster.nodes["node2"]
    node.power_off()
    # The trial of its checkpoint may have saved it once more.
    reached = max(reached, view.kept_iteration("job", saved))
    try:
        view.wait_event("job", "NodeLost")
        assert view.gpus("job") == {}, "its end is not proven"
        view.cluster.kubectl("delete", "node", "node2")
        view.wait_gpus("job", node1=1)
        [pod] = [pod for pod in view.pods("job") if pod.node == "node1"]
        assert view.first_step(pod.name) == reached + 1
        assert view.job("job")["status"].get("failures", 0) == 0
    finally:
        node.start()
    view.wait(
        lambda: is_ready(view.cluster.plane, "node2"), what="the machine that was switched on again"
    )
