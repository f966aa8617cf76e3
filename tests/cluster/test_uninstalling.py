"""Trainings go on without a release, and the next one finds them."""

from pathlib import Path

import pytest

from tests.cluster.clusters import install, uninstall
from tests.cluster.jobs import as_text, replay
from tests.cluster.looking import View

pytestmark = pytest.mark.nodes


def saved_iteration(view: View, pod: str) -> int:
    """The iteration of a training in its own output."""
    last = view.kubectl("logs", pod, "-c", "trainer", "--tail=1")
    return int(last.split()[-1]) if last.startswith("step ") else 0


def test_jobs_survive_an_uninstall_and_a_reinstall(view: View, saved: Path):
    view.cluster.give_gpus(node1=2)
    view.kubectl("apply", "-f", "-", stdin=as_text(replay("job", [2], saved)))
    view.wait_gpus("job", node1=2)
    [before] = view.pods("job")

    uninstall(view.cluster)
    try:
        reached = view.wait(lambda: saved_iteration(view, before.name), what="its own output")
        view.wait(
            lambda: saved_iteration(view, before.name) > reached, what="progress without operator"
        )
        assert view.kubectl("get", "dljob", "job", "-o", "name").strip(), "the definition is kept"
    finally:
        install(view.cluster)
    view.wait_gpus("job", node1=2)
    assert [pod.identity for pod in view.pods("job")] == [before.identity]
