"""The settings in a job's manifest reach its SideCar."""

from typing import Any

import yaml

from dljob.control.acting.sidecar_options import describe_training
from dljob.core.documents import jobfile
from dljob.core.model import Job
from dljob_wire.checkpoints import Complete, Confirmation
from dljob_wire.training import Framework, Split, Training, read_training, write_training
from tests.sidecar.drivers import ROOT


def launched(checkpoint: dict[str, Any] | None = None, memory: str = "") -> tuple[Job, Training]:
    """Return the job of an example, and its SideCar's view of it."""
    document = yaml.safe_load((ROOT / "examples" / "digits" / "job.yaml").read_text())
    if checkpoint is not None:
        document["spec"]["checkpoint"] = checkpoint
    job = jobfile.parse(document, require_template=True)
    assert jobfile.parse(jobfile.render(job), require_template=True) == job
    return job, read_training(write_training(describe_training(job, memory_folder=memory)))


def test_sidecar_reads_the_settings_of_an_example():
    job, training = launched()
    assert (training.framework, training.processes) == (Framework.PYTORCH, Split.PER_GPU)
    assert (training.checkpoint.signal, training.checkpoint.confirm) == (
        "SIGUSR1",
        Confirmation.FILE,
    )
    assert training.checkpoint.path == job.checkpoint.path
    assert training.progress == job.progress
    # No more interpreters than processes.
    assert (training.preload, training.most_spares) == (("numpy",), 4)


def test_checkpoint_memory_reaches_the_sidecar():
    asked = {"signal": "SIGUSR1", "confirm": "file", "path": "/ckpt", "complete": "dcp"}
    job, training = launched(asked | {"memory": "4Gi"}, "/memory")
    assert (training.checkpoint.memory_bytes, training.checkpoint.memory_path) == (
        4 << 30,
        "/memory",
    )
    assert read_training(write_training(describe_training(job))).checkpoint.memory_bytes == 0


def test_checkpoint_files_reach_a_sidecar_without_signals():
    given = {"path": "/ckpt", "files": "step-*", "complete": "marker", "marker": "DONE"}
    _, training = launched(given | {"settleSeconds": 0.5})
    saving = training.checkpoint
    assert (saving.path, saving.files, saving.marker) == ("/ckpt", "step-*", "DONE")
    assert (saving.complete, saving.settle_seconds) == (Complete.MARKER, 0.5)
    assert not saving.is_possible
