"""
A training that ends while its job changes is not repeated, on a real control plane.

The trainings are those of :mod:`tests.local.test_ending_in_changes`: after the last step they
evaluate until a checkpoint is requested, and ignore the request.
"""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.local.histories import read
from tests.local.test_ending_in_changes import evaluating, journal_of
from tests.operator.priorities import grant
from tests.operator.stages import Stage, staged

pytestmark = [pytest.mark.cluster, pytest.mark.processes]

ONE_NODE, TWO_NODES = {"gpu-a": 2}, {"gpu-a": 1, "gpu-b": 1}


def submit(stage: Stage, name: str, *, manner: str = "evaluates", priority: int = 0) -> None:
    document = evaluating(
        name,
        stage.folder,
        iterations=150,
        manner=manner,
        framework="pytorch",
        gpus={"options": [2]},
        priority=priority,
    )
    document["spec"]["template"]["spec"]["containers"][0]["image"] = "training"
    stage.api.post(stage.path(), document)


def says(stage: Stage, name: str) -> list[str]:
    return [line.split()[0] for line in read(journal_of(name, stage.folder))]


def suspend(stage: Stage) -> None:
    stage.api.merge(stage.path("job"), {"spec": {"suspend": True}})
    stage.wait(lambda: "asked" in says(stage, "job"))
    stage.api.merge(stage.path("job"), {"spec": {"suspend": False}})


def displace(stage: Stage) -> None:
    grant(stage, 5)
    submit(stage, "rival", manner="saves", priority=5)


def evict(stage: Stage) -> None:
    for pod in stage.pods_of("job"):
        name = pod["metadata"]["name"]
        eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}}
        stage.api.post(f"/api/v1/namespaces/{stage.namespace}/pods/{name}/eviction", eviction)


def kill_the_operator(stage: Stage) -> None:
    stage.api.merge(stage.path("job"), {"spec": {"suspend": True}})
    stage.wait(lambda: "asked" in says(stage, "job"))
    stage.operators[-1].kill()
    stage.let_lease_end()
    stage.api.merge(stage.path("job"), {"spec": {"suspend": False}})
    stage.start_operator(settings={"policy": "max-min"})


def kill_the_operator_until_all_is_over(stage: Stage) -> None:
    """The operator dies during the stop; the next one begins when the pods have ended."""
    stage.api.merge(stage.path("job"), {"spec": {"suspend": True}})
    stage.wait(lambda: "asked" in says(stage, "job"))
    stage.operators[-1].kill()
    stage.let_lease_end()
    stage.wait(lambda: not stage.kubelets.pids())
    stage.start_operator(settings={"policy": "max-min"})


@pytest.mark.parametrize(
    ("change", "nodes", "mechanism"),
    [
        pytest.param(suspend, TWO_NODES, "in-place", marks=pytest.mark.story),
        (displace, TWO_NODES, "in-place"),
        (displace, ONE_NODE, "recreate"),
        (evict, TWO_NODES, "in-place"),
        (kill_the_operator, TWO_NODES, "in-place"),
        (kill_the_operator_until_all_is_over, TWO_NODES, "in-place"),
        (kill_the_operator_until_all_is_over, TWO_NODES, "recreate"),
    ],
)
def test_job_that_ends_in_a_change_is_done_once(
    control_plane,
    namespace: str,
    tmp_path: Path,
    change: Callable[[Stage], None],
    nodes: dict[str, int],
    mechanism: str,
):
    with staged(control_plane, namespace, tmp_path, nodes) as stage:
        stage.start_operator(settings={"policy": "max-min", "mechanism": mechanism})
        submit(stage, "job")
        stage.wait(lambda: says(stage, "job").count("evaluates") == len(nodes))
        change(stage)
        status = stage.wait_for_phase("job", "Completed")
        said = says(stage, "job")
        assert "asked" in said, said
        assert said.count("done") == said.count("begins") == len(nodes), said
        # Pods are evicted one after the other, and the first one counts as lost.
        assert change is evict or status.get("restarts", 0) == 0, status
        assert status.get("failures", 0) == 0, status
