"""A real training with workers and servers under ``coach`` on a control plane: mini-epochs, then its best choice."""

import sys

import pytest
import yaml

from tests.operator.kubelets import ROOT
from tests.operator.stages import Stage

pytestmark = [pytest.mark.cluster, pytest.mark.processes]

NODES = {"gpu-a": 6}
EXAMPLE = ROOT / "examples" / "roles"
EPOCHS, STEPS = 8, 100


@pytest.mark.story
def test_history_shows_mini_epochs_and_then_the_best_workers_and_servers(stage: Stage):
    stage.start_operator(settings={"policy": "coach:mini_seconds=6"})
    example = yaml.safe_load((EXAMPLE / "job.yaml").read_text(encoding="utf-8"))
    saved = stage.folder / "saved"
    document = stage.make_job("roles", iterations=EPOCHS * STEPS)
    document["metadata"] |= {"labels": example["metadata"]["labels"]}
    document["spec"] |= {
        what: example["spec"][what] for what in ("gpus", "framework", "processes", "progress")
    }
    document["spec"]["training"] = {"epochs": EPOCHS, "iterationsPerEpoch": STEPS, "batchSize": 64}
    document["spec"]["checkpoint"] |= {"path": str(saved)}
    [container] = document["spec"]["template"]["spec"]["containers"]
    [theirs] = example["spec"]["template"]["spec"]["containers"]
    container["command"] = [
        *(sys.executable, str(EXAMPLE / "train.py"), f"--iterations={EPOCHS * STEPS}"),
        *(*theirs["command"][3:-1], f"--checkpoints={saved}"),
    ]
    stage.api.post(stage.path(), document)
    stage.wait_for_phase("roles", "Completed")
    status = stage.status("roles")
    changes = [(each["gpus"], each["cause"]) for each in status["history"] if "cause" in each]
    # One worker with one and two servers, two workers with one and two: f(w, s) is fitted to these.
    assert changes[:4] == [(3, "ItsTurn"), (4, "Exploring"), (5, "Exploring"), (6, "Exploring")]
    assert changes[4] == (4, "FasterWithFewer")
    assert status["progress"]["iteration"] == EPOCHS * STEPS
