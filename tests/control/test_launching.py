"""The settings in a job's manifest reach its SideCar."""

import yaml

from dlcontrol.acting.sidecar_options import sidecar_options
from dlcore.documents import jobfile
from dlcore.documents.checkpointfields import CHECKPOINT_SIGNS
from dlsidecar.options import read
from dlsidecar.settings import Complete, Confirmation, Framework, Split
from tests.sidecar.drivers import ROOT


def test_a_sidecar_understands_what_is_said_of_an_example():
    document = yaml.safe_load((ROOT / "examples" / "digits" / "job.yaml").read_text())
    options = sidecar_options(jobfile.parse(document, require_template=True))
    training = read(["run", "--socket=control", *options, "--", "python", "train.py"], {}).training
    assert (training.framework, training.split) == (Framework.PYTORCH, Split.PER_GPU)
    assert (training.saving.signal, training.saving.confirm) == ("SIGUSR1", Confirmation.FILE)
    assert training.saving.path == document["spec"]["checkpoint"]["path"]
    assert training.progress_log == document["spec"]["progress"]["log"]
    # No more interpreters wait than it can ever have processes.
    assert (training.preload, training.most_spares) == (("numpy",), 4)


def test_memory_for_checkpoints_reaches_the_sidecar_where_the_platform_has_a_folder_for_it():
    document = yaml.safe_load((ROOT / "examples" / "digits" / "job.yaml").read_text())
    document["spec"]["checkpoint"] = {
        "signal": "SIGUSR1",
        "confirm": "file",
        "path": "/ckpt",
        "complete": "dcp",
        "memory": "4Gi",
    }
    job = jobfile.parse(document, require_template=True)
    assert jobfile.parse(jobfile.render(job), require_template=True) == job
    options = sidecar_options(job, "/memory")
    saving = read(["run", "--socket=control", *options, "--", "true"], {}).training.saving
    assert (saving.memory_bytes, saving.memory_path) == (4 << 30, "/memory")
    assert not any("memory" in option for option in sidecar_options(job))


def test_a_sidecar_knows_every_sign_of_a_checkpoint():
    assert set(CHECKPOINT_SIGNS) == {sign.value for sign in Complete}


def test_what_is_a_checkpoint_reaches_the_sidecar_of_a_job_that_is_never_asked_as_well():
    document = yaml.safe_load((ROOT / "examples" / "digits" / "job.yaml").read_text())
    document["spec"]["checkpoint"] = {
        "path": "/ckpt",
        "files": "step-*",
        "complete": "marker",
        "marker": "DONE",
        "settleSeconds": 0.5,
    }
    job = jobfile.parse(document, require_template=True)
    assert jobfile.parse(jobfile.render(job), require_template=True) == job
    options = sidecar_options(job)
    saving = read(["run", "--socket=control", *options, "--", "true"], {}).training.saving
    assert (saving.path, saving.files, saving.marker) == ("/ckpt", "step-*", "DONE")
    assert (saving.complete, saving.settle_seconds) == (Complete.MARKER, 0.5)
    assert not saving.is_possible
