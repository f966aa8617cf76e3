"""The case study's two jobs on real nodes, as users see them, and larger ones over two nodes."""

from pathlib import Path

import pytest

from tests.cluster.jobs import as_text, replay
from tests.cluster.looking import View

pytestmark = pytest.mark.nodes


@pytest.mark.story
def test_job_lends_gpus_and_gets_them_back_in_place(view: View, saved: Path):
    """The SideCar paper's case study: 4 GPUs, then 2 and 2, then 4 again, in the same container."""
    view.cluster.give_gpus(node1=4)
    view.kubectl("apply", "-f", "-", stdin=as_text(replay("job-1", [2, 4], saved)))
    view.wait_gpus("job-1", node1=4)
    [before] = view.pods("job-1")
    assert before.phase == "Running"

    second = replay("job-2", [2], saved, iterations=200, faster=4.0)
    view.kubectl("apply", "-f", "-", stdin=as_text(second))
    [two] = view.wait_gpus("job-2", node1=2).values()
    [others] = view.wait_gpus("job-1", node1=2).values()
    assert not set(two) & set(others), "a GPU has two masters"
    assert view.columns("job-1")["GPUS"] == "2", view.tell()

    view.wait_phase("job-2", "Completed")
    view.wait_gpus("job-1", node1=4)
    assert [pod.identity for pod in view.pods("job-1")] == [before.identity]
    told = " ".join(message for reason, message in view.events("job-1") if reason == "Reshaping")
    assert "goes from 4 to 2" in told
    assert "goes from 2 to 4" in told


def test_job_grows_over_two_nodes_and_shrinks_to_one(view: View, saved: Path):
    """A pod on each node; the first one stays unchanged, and kube-scheduler binds each pod."""
    view.cluster.give_gpus(node1=2)
    wide = replay("wide", [2, 4], saved, framework="pytorch", processes="perGpu")
    view.kubectl("apply", "-f", "-", stdin=as_text(wide))
    view.wait_gpus("wide", node1=2)
    [first] = view.pods("wide")

    view.cluster.give_gpus(node1=2, node2=2)
    view.wait_gpus("wide", node1=2, node2=2)
    pods = view.pods("wide")
    assert first.identity in [pod.identity for pod in pods]
    ranks = {(each.rank, each.world) for pod in pods for each in view.trainings(pod.name)}
    assert ranks == {(str(rank), "4") for rank in range(4)}
    for pod in pods:
        view.wait_scheduled(pod.name)

    other = replay("other", [2], saved, iterations=10**6)
    view.kubectl("apply", "-f", "-", stdin=as_text(other))
    view.wait(lambda: len(view.pods("wide")) == 1, what="the end of one of the two pods")
    view.wait_progress("wide")
    view.wait_progress("other")
    [left] = view.pods("wide")
    assert left.identity in [pod.identity for pod in pods]
    view.wait(
        lambda: set(view.gpus("wide")) | set(view.gpus("other")) == {"node1", "node2"},
        what="a job on each node",
    )


def test_deleted_job_leaves_nothing_behind(view: View, saved: Path):
    view.cluster.give_gpus(node1=1)
    view.kubectl("apply", "-f", "-", stdin=as_text(replay("job", [1], saved)))
    view.wait_gpus("job", node1=1)
    view.kubectl("delete", "dljob", "job", "--timeout=240s")
    # The job is gone after its training; kubelet and garbage collector take a moment more.
    left = ("get", "pods,secrets", "-o", "name")
    view.wait(lambda: not view.kubectl(*left).strip(), what="the end of pods and Secrets")
