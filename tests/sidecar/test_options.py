"""The command line: valid options, and refusals that name the wrong option."""

import json
import re
from dataclasses import replace

import pytest

from dljob_sidecar.options import UsageError, environment_of_training, read
from dljob_wire.checkpoints import Checkpoint, Confirmation
from dljob_wire.training import (
    TRAINING,
    Framework,
    GpuIds,
    Progress,
    Split,
    Training,
    read_training,
    write_training,
)
from tests.sidecar.drivers import ROOT

LOCAL = ["--socket", "control"]
NETWORK = ["--listen", ":8470", "--tls", "certificates", "--job-uid", "uid-1"]


def settings_of(environment=None, **fields):
    given = ["--training", json.dumps(fields)] if fields else []
    return read(["run", *LOCAL, *given, "--", "python", "train.py"], environment or {})


def test_all_settings_survive_the_command_line():
    training = Training(
        ("python", "train.py"),
        Framework.PYTORCH,
        Split.PER_GPU,
        GpuIds.UUID,
        Checkpoint(
            "SIGUSR1",
            to="all",
            grace_seconds=3.5,
            confirm=Confirmation.FILE,
            path="/ckpt",
            settle_seconds=0.5,
        ),
        preload=("torch", "torchvision"),
        progress=Progress("loss=(?P<loss>\\S+)\tµ \udce4"),
        expects_gpus=False,
    )
    assert replace(read_training(write_training(training)), command=training.command) == training
    assert write_training(Training()) == "{}"
    given = [*NETWORK, "--health", "[::1]:80", "--training", write_training(training)]
    settings = read(["run", *given, "--", "sh", "-c", "echo --socket 3"], {})
    assert settings.training == replace(training, command=("sh", "-c", "echo --socket 3"))
    serving = settings.serving
    assert (serving.address, serving.port, serving.job_uid) == ("", 8470, "uid-1")
    assert (serving.health_address, serving.health_port) == ("::1", 80)


def test_command_line_overrides_the_environment():
    environment = {
        "DLJOB_SIDECAR_TRAINING": '{"checkpoint": {"graceSeconds": 1}}',
        "DLJOB_SIDECAR_HEALTH": ":80",
    }
    assert settings_of(environment).training.checkpoint.grace_seconds == 1
    settings = settings_of(environment, killSeconds=3)
    assert (settings.training.checkpoint.grace_seconds, settings.training.kill_seconds) == (10, 3)
    assert settings.serving.health_port == 80


def test_service_links_of_kubernetes_are_ignored():
    links = {
        "DLJOB_SIDECAR_SERVICE_HOST": "10.0.0.1",
        "DLJOB_SIDECAR_SERVICE_PORT_METRICS": "9000",
        "DLJOB_SIDECAR_METRICS_SERVICE_PORT": "9000",
        "DLJOB_SIDECAR_PORT": "tcp://10.0.0.1:9000",
        "DLJOB_SIDECAR_PORT_9000_TCP_ADDR": "10.0.0.1",
    }
    assert settings_of(links) == settings_of()
    assert environment_of_training(links) == links


def test_unknown_option_in_the_environment_is_refused():
    with pytest.raises(UsageError, match="--graze-seconds"):
        settings_of({"DLJOB_SIDECAR_GRAZE_SECONDS": "3"})


def test_training_sees_no_options_of_the_sidecar(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    given = {"DLJOB_SIDECAR_TLS": "/certificates", "HOME": "/home/user"}
    assert environment_of_training(given) == {"HOME": "/home/user"}
    environment = environment_of_training(given, "inner")
    assert environment == {"HOME": "/home/user", "DLJOB_PROGRESS_SOCKET": f"{tmp_path}/inner"}


WRONG: list[tuple[list[str], str]] = [
    (["run", "--", "true"], "no address to answer on"),
    (["run", *LOCAL], "the command to run is missing"),
    (["run", "--listen", ":1", "--", "true"], "no address to answer on"),
    (["run", "--tls", "folder", "--job-uid", "u", "--", "true"], "need each other"),
    (["run", "--tls", "folder", "--listen", ":1", "--", "true"], "need each other"),
    ([], "required: verb"),
    (["dance"], "dance"),
    (["run", *LOCAL, "--speed", "--", "true"], "--speed"),
    (["run", *LOCAL, "--health", "80", "--", "true"], "80 is not an address with"),
]
WRONG_FIELDS: list[tuple[dict[str, object], str]] = [
    ({"speed": 1}, "speed: there is no such field"),
    ({"checkpoint": {"speed": 1}}, "checkpoint.speed: there is no such field"),
    ({"checkpoint": []}, "checkpoint: it is a list, not a mapping"),
    ({"checkpoint": {"graceSeconds": -1}}, "checkpoint.graceSeconds: -1 is negative"),
    ({"pollSeconds": 0}, "pollSeconds: 0 is less than 0.1"),
    ({"checkpoint": {"signal": "USR1"}}, 'checkpoint.signal: "USR1" is not a signal'),
    ({"checkpoint": {"signal": "SIGUSR9"}}, '"SIGUSR9" is not a signal'),
    ({"checkpoint": {"http": "save"}}, 'checkpoint.http: "save" is not a path of HTTP'),
    ({"checkpoint": {"files": "../x"}}, 'checkpoint.files: "../x" is not a pattern'),
    (
        {"checkpoint": {"command": "save.sh"}},
        'checkpoint.command: "save.sh" is a string, not a list',
    ),
    ({"checkpoint": {"signal": "SIGUSR1", "http": ":1/x"}}, "in more than one way"),
    ({"checkpoint": {"signal": "SIGUSR1", "confirm": "file"}}, "path does not say where"),
]


def test_wrong_options_are_refused_by_name():
    for arguments, message in WRONG:
        with pytest.raises(UsageError, match=message):
            read(arguments, {})
    for text in ("[]", "{", '{"framework": "x", "framework": "y"}'):
        with pytest.raises(UsageError, match="--training: "):
            read(["run", *LOCAL, f"--training={text}", "--", "true"], {})
    for fields, message in WRONG_FIELDS:
        with pytest.raises(UsageError, match=f"--training: .*{message}"):
            settings_of(**fields)


def test_help_and_docs_list_every_option(capsys):
    with pytest.raises(SystemExit):
        read(["run", "--help"], {})
    printed = capsys.readouterr().out
    assert set(re.findall(r"^  (--[\w-]+)", printed, re.MULTILINE)) == {
        *("--training", "--socket", "--listen", "--tls", "--job-uid", "--controller-name"),
        *("--health", "--left"),
    }
    page = (ROOT / "docs" / "sidecar.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^\| `([\w.]+)` \| `[^|]*` \| ", page, re.MULTILINE)) == {
        *TRAINING.fields
    }
