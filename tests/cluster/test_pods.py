"""Pods on real nodes: Guaranteed, within a LimitRange, drained as documented, on the host network."""

from pathlib import Path

import pytest

from dljob.operator.podspecs.bringing import has_image_volumes
from dljob.operator.podspecs.host_ports import BLOCK, first_port
from tests.cluster.jobs import as_text, replay, trainer_of
from tests.cluster.looking import View

pytestmark = pytest.mark.nodes

STRICT = {
    "apiVersion": "v1",
    "kind": "LimitRange",
    "metadata": {"name": "strict"},
    "spec": {
        "limits": [
            {
                "type": "Container",
                "min": {"cpu": "100m", "memory": "32Mi"},
                "maxLimitRequestRatio": {"cpu": "1", "memory": "1"},
            }
        ]
    },
}
"""It refuses jobs if the container that brings the SideCar requests less than its limit."""


def test_guaranteed_pod_stays_so_and_is_drained_as_documented(view: View, saved: Path):
    view.kubectl("apply", "-f", "-", stdin=as_text(STRICT))
    view.cluster.give_gpus(node1=1)
    manifest = replay("job", [1], saved)
    amounts = {"cpu": "200m", "memory": "256Mi"}
    trainer_of(manifest)["resources"] = {"requests": amounts, "limits": amounts}
    view.kubectl("apply", "-f", "-", stdin=as_text(manifest))
    view.wait_progress("job")
    [before] = view.pods("job")
    [document] = view.find("pods")
    assert document["status"]["qosClass"] == "Guaranteed"
    by_volume = has_image_volumes(view.cluster.ask("node", "node1"))
    brought = [each for each in document["spec"]["volumes"] if each["name"] == "dljob-sidecar"]
    assert ["image" in each for each in brought] == [by_volume]
    assert ("initContainers" in document["spec"]) is not by_volume

    # Eviction makes it save; no volume option is needed unless the pod has its own emptyDir.
    view.cluster.give_gpus(node1=1, node2=1)
    options = [] if by_volume else ["--delete-emptydir-data"]
    try:
        view.cluster.kubectl(
            *("drain", "node1", "--ignore-daemonsets", "--timeout=240s", *options),
            "--pod-selector=dljob.io/job=job",
        )
        view.wait_gpus("job", node2=1)
        [after] = [pod for pod in view.pods("job") if pod.uid != before.uid]
        assert view.first_step(after.name) > 1, "it goes on from its checkpoint"
    finally:
        view.cluster.kubectl("uncordon", "node1")


def test_job_leaves_a_node_with_a_notice(view: View, saved: Path):
    view.cluster.give_gpus(node1=1)
    view.kubectl("apply", "-f", "-", stdin=as_text(replay("job", [1], saved)))
    view.wait_progress("job")
    reached = view.save("job", saved)
    view.cluster.give_gpus(node1=1, node2=1)
    notice = "karpenter.sh/disrupted:NoSchedule"
    view.cluster.kubectl("taint", "node", "node1", notice)
    try:
        view.wait_gpus("job", node2=1)
        [pod] = [pod for pod in view.pods("job") if pod.node == "node2"]
        assert view.first_step(pod.name) > reached
        assert view.job("job")["status"].get("failures", 0) == 0
    finally:
        view.cluster.kubectl("taint", "node", "node1", f"{notice}-")


def test_jobs_on_one_host_network_have_their_own_ports(view: View, saved: Path):
    jobs = ("left", "right")
    view.cluster.give_gpus(node1=2)
    for job in jobs:
        manifest = replay(job, [1], saved)
        manifest["spec"]["template"]["spec"]["hostNetwork"] = True
        view.kubectl("apply", "-f", "-", stdin=as_text(manifest))
    for job in jobs:
        view.wait_progress(job)

    def find_blocks() -> dict[str, int]:
        return {
            pod["metadata"]["labels"]["dljob.io/job"]: first_port(pod) for pod in view.find("pods")
        }

    def find_nodes() -> list[str]:
        return sorted(pod.node for job in jobs for pod in view.pods(job))

    blocks = find_blocks()
    assert find_nodes() == ["node1", "node1"]
    assert sorted(blocks) == sorted(jobs)
    assert abs(blocks["left"] - blocks["right"]) >= BLOCK
    assert all(pod["spec"]["hostNetwork"] for pod in view.find("pods"))

    # One of them must move, and keeps its ports.
    view.cluster.give_gpus(node1=1, node2=1)
    view.wait(lambda: find_nodes() == ["node1", "node2"], what="a job on each node")
    for job in jobs:
        view.wait_progress(job)
    assert find_blocks() == blocks
