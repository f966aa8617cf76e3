"""Pods show roughly how many seconds of work a stop would lose."""

from dataclasses import replace
from typing import Any

import pytest

from dljob.control.situation.status import Trust
from dljob.core.model import Checkpoint, Phase
from dljob.kube import names
from dljob.operator.reporting.publishing import is_due, lost_seconds
from tests.control.scenes import cast, make_scene
from tests.operator.stages import Stage, staged


@pytest.mark.parametrize(
    ("shown", "seconds", "due"),
    [
        (None, 0, 1),
        ("0", 9, 0),
        ("0", 10, 1),
        ("100", 120, 0),
        ("100", 121, 1),
        ("20", 26, 0),
        ("99", 0, 1),
    ],
)
def test_change_by_more_than_a_fifth_is_written(shown, seconds, due):
    assert is_due(shown, seconds) == bool(due)


@pytest.mark.parametrize(
    ("facts", "seconds"),
    [
        pytest.param({}, 45, id="since its last checkpoint"),
        pytest.param({"saved": 0}, 50, id="since its beginning"),
        pytest.param({"trust": Trust.CONFIRMED}, 0, id="it saves before a stop"),
        pytest.param(
            {"trust": Trust.CONFIRMED, "place": "an emptyDir"}, 50, id="it ends with its pod"
        ),
        pytest.param({"pace": 0.0, "speed": 0.0}, None, id="its pace is unknown"),
        pytest.param({"phase": Phase.ADJUSTING}, None, id="it is changing"),
    ],
)
def test_stop_loses_unsaved_work(facts, seconds):
    known = dict(facts)
    checkpoint = Checkpoint(ends_with_pod=known.pop("place", ""))
    scene = make_scene(cast("a", {"n0": (0,)}, checkpoint=checkpoint))
    [entry] = scene.entries.values()
    saved: dict[str, Any] = {"iteration": 100, "saved": 10, "pace": 2.0}
    status = replace(entry.status, **(saved | known))
    assert lost_seconds(replace(entry, status=status)) == seconds


@pytest.mark.cluster
@pytest.mark.processes
@pytest.mark.story
def test_pods_show_the_loss_of_a_stop(control_plane, namespace, tmp_path):
    def shown(stage: Stage, job: str) -> int | None:
        found = [
            pod["metadata"].get("annotations", {}).get(names.LOSS) for pod in stage.pods_of(job)
        ]
        return int(found[0]) if found and found[0] is not None else None

    with staged(control_plane, namespace, tmp_path, {"gpu-a": 4}) as stage:
        stage.start_operator()
        for name, checkpoint in (("unsaved", {}), ("trusted", {"trusted": True})):
            document = stage.make_job(name, iterations=10**6)
            document["spec"] |= {"gpus": {"options": [1]}}
            document["spec"]["checkpoint"] = checkpoint
            stage.api.post(stage.path(), document)
        stage.wait(lambda: (shown(stage, "unsaved") or 0) >= 10)
        stage.wait(lambda: shown(stage, "trusted") == 0)
