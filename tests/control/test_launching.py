"""What a job says of itself reaches its SideCar."""

import yaml

from dlcontrol.launching import sidecar_options
from dlcore import jobfile
from dlsidecar.options import read
from dlsidecar.settings import Confirmation, Framework, Split
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
