"""
No foreign document ends an operator, however strange, if the API server accepts it.

The documents exist before the operator starts, because one that ends it would end it at each start;
one more of each kind comes while it leads.
"""

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from tests.operator.stages import Stage, lasting_stage, wait_until
from tests.servers.api import Json, Refused
from tests.servers.controlplane import ControlPlane

pytestmark = [pytest.mark.cluster, pytest.mark.processes]


NODE = "gpu-odd"
AMOUNTS = ("1e999999", "9" * 60, "1e-999999", "123456789E")
"""Amounts of CPU that the API server accepts."""
DEPTHS = (70, 900, 3000, 9000)
SUFFIXES = ("before", "after")
STATUSES: tuple[Json, ...] = (
    {"phase": "Running", "startedAt": "2026-13-45T99:99:99Z"},
    {
        "phase": "Running",
        "allocation": {"generation": 2**53, "nodes": [{"name": "x", "gpuIds": []}]},
    },
    {"phase": "Queued", "cause": {"code": "Nonsense", "gpus": 1}},
    {"conditions": [{"type": "Nonsense", "status": "Maybe", "reason": "R", "message": ""}]},
    {"pods": [{"node": "", "serial": 0}, {"node": "", "serial": 0}], "podsBooked": -1},
    {"submittedAt": "0001-01-01T00:00:00+14:00", "progress": {"iteration": 10**15}},
)


@pytest.fixture(scope="module")
def stage(control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with lasting_stage(control_plane, tmp_path_factory, {NODE: 4}) as stage:
        yield stage


def nested(depth: int) -> Any:
    document: Any = 0
    for _ in range(depth):
        document = [document]
    return document


def deeply(act: Callable[[], object]) -> None:
    """Act on documents that are nested deeper than Python's stack usually allows."""
    before, size = sys.getrecursionlimit(), threading.stack_size(256 << 20)
    sys.setrecursionlimit(100_000)
    try:
        thread = threading.Thread(target=act)
        thread.start()
        thread.join(240.0)
        assert not thread.is_alive()
    finally:
        sys.setrecursionlimit(before)
        threading.stack_size(size)


def remove_strange(stage: Stage) -> None:
    """Remove the jobs that later tests could not decode when they list all jobs."""
    names = [f"deep-{depth}-{suffix}" for depth in DEPTHS for suffix in SUFFIXES]
    left: list[str] = []

    def delete() -> None:
        for name in names:
            with contextlib.suppress(Refused):
                stage.api.delete(stage.path(name))

    def look() -> None:
        left[:] = [name for name in names if not stage.is_gone(name)]

    def are_gone() -> bool:
        deeply(look)
        return not left

    deeply(delete)
    wait_until(are_gone, stage.operators[-1].last_words)


def make_strange(stage: Stage, suffix: str) -> int:
    """Make each strange document that the API server accepts; return their number."""
    pods = stage.pod_path()
    made = 0
    for number, amount in enumerate(AMOUNTS):
        container = {"name": "c", "image": "x", "resources": {"requests": {"cpu": amount}}}
        pod = {
            "metadata": {"name": f"amount-{number}-{suffix}"},
            "spec": {"containers": [container], "nodeName": NODE},
        }
        made += is_taken(stage, pods, pod)
    for depth in DEPTHS:
        job = stage.make_job(f"deep-{depth}-{suffix}", iterations=10)
        job["spec"]["template"]["spec"]["containers"][0]["securityContext"] = {"x": nested(depth)}
        deeply(partial(is_taken, stage, stage.path(), job))
    return made


def make_strange_statuses(stage: Stage) -> int:
    """Write statuses that no operator writes, before any leads: later they would be a rival's."""
    made = 0
    for number, status in enumerate(STATUSES):
        name = f"status-{number}"
        stage.submit(name, suspend=True)
        try:
            stage.api.merge(f"{stage.path(name)}/status", {"status": status})
            made += 1
        except Refused as refused:
            sys.stderr.write(f"status {number}: {refused}\n"[:300])
    return made


def is_taken(stage: Stage, path: str, document: Json) -> bool:
    try:
        stage.api.post(path, document)
    except Refused as refused:
        sys.stderr.write(f"{document['metadata']['name']}: {refused}\n"[:300])
        return False
    return True


def test_foreign_documents_end_no_operator(stage: Stage):
    made = make_strange(stage, "before") + make_strange_statuses(stage)
    annotations = {"dljob.io/cordoned-gpus": "[" * 100_000, "dljob.io/pardoned-gpus": "[" * 100_000}
    stage.api.merge(f"/api/v1/nodes/{NODE}", {"metadata": {"annotations": annotations}})
    operator = stage.start_operator()
    none = dict.fromkeys(annotations)
    stage.api.merge(f"/api/v1/nodes/{NODE}", {"metadata": {"annotations": none}})
    made += make_strange(stage, "after")
    sys.stderr.write(f"{made} strange documents taken by the API server\n")
    for pod in stage.pods():
        if pod["metadata"]["name"].startswith("amount"):
            stage.api.delete(
                stage.pod_path(pod["metadata"]["name"]),
                gracePeriodSeconds=0,
            )
    stage.submit("plain", iterations=50)

    def is_completed() -> bool:
        assert operator.is_running, operator.last_words()
        return stage.phase("plain") == "Completed"

    wait_until(is_completed, operator.last_words)
    remove_strange(stage)
