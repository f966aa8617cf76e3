"""The command line: valid options, and refusals that name the wrong option."""

import re

import pytest

from dlsidecar.options import UsageError, environment_of_training, read
from dlsidecar.settings import Confirmation, Framework, Split

LOCAL = ["--socket", "control"]
NETWORK = ["--listen", ":8470", "--tls", "certificates", "--job-uid", "uid-1"]


def settings_of(*options: str, environment: dict[str, str] | None = None):
    return read(["run", *LOCAL, *options, "--", "python", "train.py"], environment or {})


def test_the_command_is_what_stands_behind_the_dashes():
    settings = read(["run", *LOCAL, "--", "sh", "-c", "echo --grace-seconds 3"], {})
    assert settings.training.command == ("sh", "-c", "echo --grace-seconds 3")


def test_everything_can_be_said():
    training = settings_of(
        *["--framework", "pytorch", "--processes", "perGpu", "--grace-seconds", "3.5"],
        *["--preload", "torch, torchvision", "--checkpoint-signal", "sigusr1"],
        *["--checkpoint-to", "all", "--checkpoint-confirm", "file", "--checkpoint-path", "/ckpt"],
    ).training
    assert (training.framework, training.split) == (Framework.PYTORCH, Split.PER_GPU)
    assert (training.grace_seconds, training.preload) == (3.5, ("torch", "torchvision"))
    saving = training.saving
    assert (saving.signal, saving.to_all, saving.confirm) == ("SIGUSR1", True, Confirmation.FILE)


def test_a_network_is_only_listened_to_with_certificates():
    serving = read(["run", *NETWORK, "--", "true"], {}).serving
    assert (serving.address, serving.port, serving.job_uid) == ("", 8470, "uid-1")


@pytest.mark.parametrize(
    ("text", "address"),
    [(":80", ("", 80)), ("10.1.2.3:80", ("10.1.2.3", 80)), ("[::1]:80", ("::1", 80))],
)
def test_an_address_is_a_host_and_a_port(text, address):
    serving = settings_of("--health", text).serving
    assert (serving.health_address, serving.health_port) == address


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


def test_the_training_does_not_see_our_options():
    environment = {"DLJOB_SIDECAR_TLS": "/certificates", "HOME": "/home/user"}
    assert environment_of_training(environment) == {"HOME": "/home/user"}


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


def test_looking_around_without_a_pause_is_not_possible():
    assert settings_of("--poll-seconds", "0").poll_seconds > 0


def test_the_training_is_told_where_it_may_tell_its_progress(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    environment = environment_of_training({"HOME": "/home/user"}, "inner")
    assert environment == {"HOME": "/home/user", "DLJOB_PROGRESS_SOCKET": f"{tmp_path}/inner"}


WRONG = {
    "no address to answer on": (["run", "--", "true"], "no address to answer on"),
    "nothing to run": (["run", *LOCAL], "the command to run is missing"),
    "a network without certificates": (
        ["run", "--listen", ":1", "--", "true"],
        "no address to answer on",
    ),
    "certificates without a port": (
        ["run", "--tls", "folder", "--job-uid", "u", "--", "true"],
        "need each other",
    ),
    "certificates without a job": (
        ["run", "--tls", "folder", "--listen", ":1", "--", "true"],
        "need each other",
    ),
    "no verb": ([], "required: verb"),
    "an unknown verb": (["dance"], "dance"),
    "an unknown option": (["run", *LOCAL, "--speed", "--", "true"], "--speed"),
    "no address": (["run", *LOCAL, "--health", "80", "--", "true"], "80 is not an address with"),
    "a port too far": (
        ["run", *LOCAL, "--health", ":65536", "--", "true"],
        "is not an address with a port",
    ),
    "no time": (["run", *LOCAL, "--grace-seconds", "-1", "--", "true"], "not a time"),
    "not a time": (["run", *LOCAL, "--grace-seconds", "nan", "--", "true"], "not a time"),
    "no signal": (
        ["run", *LOCAL, "--checkpoint-signal", "USR9", "--", "true"],
        "not the name of a signal",
    ),
    "no hook": (["run", *LOCAL, "--checkpoint-http", "save", "--", "true"], "no hook"),
    "no list": (["run", *LOCAL, "--checkpoint-command", "save.sh", "--", "true"], "no list"),
    "two ways to save": (
        ["run", *LOCAL, "--checkpoint-signal", "SIGUSR1", "--checkpoint-http", "1/x", "--", "true"],
        "one way to ask for a checkpoint",
    ),
    "a confirmation without its place": (
        [
            *["run", *LOCAL, "--checkpoint-signal", "SIGUSR1"],
            *["--checkpoint-confirm", "file", "--", "true"],
        ],
        "needs --checkpoint-path",
    ),
    "progress without a socket": (
        ["run", *LOCAL, "--progress-http", "--", "true"],
        "--inner-socket",
    ),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_what_contradicts_itself_is_refused_by_name(wrong):
    arguments, message = WRONG[wrong]
    with pytest.raises(UsageError, match=message):
        read(arguments, {})


def test_the_version_is_told(capsys):
    with pytest.raises(SystemExit) as left:
        read(["--version"], {})
    assert left.value.code == 0
    assert capsys.readouterr().out.startswith("dljob-sidecar 0.")


def test_the_help_explains_every_option(capsys):
    with pytest.raises(SystemExit):
        read(["run", "--help"], {})
    told = capsys.readouterr().out
    described = re.findall(r"^  (--[\w-]+)[^\n]*?(?:\n {24}|  )(\S)", told, re.MULTILINE)
    options = set(re.findall(r"^  (--[\w-]+)", told, re.MULTILINE))
    assert len(options) > 20
    assert {name for name, _ in described} == options
    assert "DLJOB_SIDECAR_GRACE_SECONDS" in told
