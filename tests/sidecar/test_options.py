"""The command line: valid options, and refusals that name the wrong option."""

import re

import pytest

from dlsidecar.options import UsageError, environment_of_training, read
from dlsidecar.settings import Confirmation, Framework, Split

LOCAL = ["--socket", "control"]
NETWORK = ["--listen", ":8470", "--tls", "certificates", "--job-uid", "uid-1"]


def settings_of(*options: str, environment: dict[str, str] | None = None):
    return read(["run", *LOCAL, *options, "--", "python", "train.py"], environment or {})


def test_everything_can_be_said():
    training = settings_of(
        *["--framework", "pytorch", "--processes", "perGpu", "--grace-seconds", "3.5"],
        *["--preload", "torch, torchvision", "--checkpoint-signal", "sigusr1"],
        *["--checkpoint-to", "all", "--checkpoint-confirm", "file", "--checkpoint-path", "/ckpt"],
    ).training
    assert training.command == ("python", "train.py")
    assert (training.framework, training.split) == (Framework.PYTORCH, Split.PER_GPU)
    assert (training.grace_seconds, training.preload) == (3.5, ("torch", "torchvision"))
    saving = training.saving
    assert (saving.signal, saving.to_all, saving.confirm) == ("SIGUSR1", True, Confirmation.FILE)
    network = [*NETWORK, "--health", "[::1]:80", "--poll-seconds", "0"]
    settings = read(["run", *network, "--", "sh", "-c", "echo --grace-seconds 3"], {})
    assert settings.training.command == ("sh", "-c", "echo --grace-seconds 3")
    serving = settings.serving
    assert (serving.address, serving.port, serving.job_uid) == ("", 8470, "uid-1")
    assert (serving.health_address, serving.health_port) == ("::1", 80)
    # To look around without a pause is not possible.
    assert settings.poll_seconds > 0


def test_the_environment_may_say_it_and_the_command_line_wins():
    environment = {
        "DLJOB_SIDECAR_GRACE_SECONDS": "1",
        "DLJOB_SIDECAR_KILL_SECONDS": "2",
        "DLJOB_SIDECAR_NO_GPUS_EXPECTED": "1",
        "DLJOB_SIDECAR_PROGRESS_LOG": r"step (?P<iteration>\d+) --grace-seconds 9",
    }
    settings = settings_of("--kill-seconds", "3", environment=environment)
    training = settings.training
    assert (training.grace_seconds, training.kill_seconds) == (1, 3)
    assert training.progress_log == environment["DLJOB_SIDECAR_PROGRESS_LOG"]
    assert not settings.expected_gpus


def test_what_kubernetes_says_of_a_service_is_none_of_our_options():
    links = {
        "DLJOB_SIDECAR_SERVICE_HOST": "10.0.0.1",
        "DLJOB_SIDECAR_SERVICE_PORT_METRICS": "9000",
        "DLJOB_SIDECAR_METRICS_SERVICE_PORT": "9000",
        "DLJOB_SIDECAR_PORT": "tcp://10.0.0.1:9000",
        "DLJOB_SIDECAR_PORT_9000_TCP_ADDR": "10.0.0.1",
    }
    assert settings_of(environment=links) == settings_of()
    assert environment_of_training(links) == links


def test_an_unknown_option_in_the_environment_is_refused():
    with pytest.raises(UsageError, match="--graze-seconds"):
        settings_of(environment={"DLJOB_SIDECAR_GRAZE_SECONDS": "3"})


def test_the_training_sees_none_of_our_options_and_where_it_may_tell_its_progress(
    tmp_path, monkeypatch
):
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
]
WRONG_OPTIONS = [
    ("--speed", "--speed"),
    ("--health 80", "80 is not an address with"),
    ("--grace-seconds -1", "not a time"),
    ("--grace-seconds nan", "not a time"),
    ("--checkpoint-signal USR9", "not the name of a signal"),
    ("--checkpoint-http save", "no hook"),
    ("--checkpoint-command save.sh", "no list"),
    ("--checkpoint-signal SIGUSR1 --checkpoint-http 1/x", "one way to ask for a checkpoint"),
    ("--checkpoint-signal SIGUSR1 --checkpoint-confirm file", "needs --checkpoint-path"),
    ("--progress-http", "--inner-socket"),
]


def test_what_contradicts_itself_is_refused_by_name():
    for arguments, message in WRONG:
        with pytest.raises(UsageError, match=message):
            read(arguments, {})
    for options, message in WRONG_OPTIONS:
        with pytest.raises(UsageError, match=message):
            settings_of(*options.split())


def test_the_help_explains_every_option(capsys):
    with pytest.raises(SystemExit):
        read(["run", "--help"], {})
    told = capsys.readouterr().out
    described = re.findall(r"^  (--[\w-]+)[^\n]*?(?:\n {24}|  )(\S)", told, re.MULTILINE)
    options = set(re.findall(r"^  (--[\w-]+)", told, re.MULTILINE))
    assert len(options) > 20
    assert {name for name, _ in described} == options
    assert "DLJOB_SIDECAR_GRACE_SECONDS" in told
