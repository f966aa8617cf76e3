"""``dljob.training``: ranks save at the same step, markers come last, and reports arrive."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import sys
from functools import partial
from typing import Any

import pytest

from dljob import training
from dljob_sidecar import assembling
from dljob_sidecar.processes import rank_environment
from dljob_wire.checkpoints import Checkpoint, Complete
from dljob_wire.training import Progress, Training
from tests.sidecar.drivers import LIMIT_SECONDS, ROOT, wait_until

INSTALLED = ROOT / ".frameworks" / "pytorch" / "bin" / "python"
REQUESTS = 10


def begin_ranks(folder, count, *words, python=(sys.executable,), **variables):
    path = [str(ROOT / "sidecar"), str(assembling.MODULES), str(ROOT)]
    environment = {
        **os.environ,
        "PYTHONPATH": ":".join(path),
        "WORLD_SIZE": str(count),
        "DLJOB_CHECKPOINT_SIGNAL": "SIGUSR1",
        "OMP_NUM_THREADS": "1",
        **variables,
    }
    command = [*python, "-m", "tests.sidecar.agreeing", str(folder), str(REQUESTS), *words]
    return [
        subprocess.Popen(command, env={**environment, "RANK": str(rank)}, cwd=ROOT)
        for rank in range(count)
    ]


def read_saves(folder, rank):
    path = folder / str(rank)
    return path.read_text().split() if path.exists() else []


def ask_often(folder, processes):
    """Ask random ranks again and again; return the steps of the saves of each."""
    chance = random.Random(7)
    everyone = range(len(processes))

    def have_saved(count):
        assert not any(one.poll() for one in processes), "a rank has failed"
        return all(len(read_saves(folder, rank)) >= count for rank in everyone)

    try:
        for request in range(REQUESTS):
            wait_until(partial(have_saved, request + 1), what="the saves")
            for asked in chance.sample(everyone, chance.choice((1, 1, len(processes)))):
                processes[asked].send_signal(signal.SIGUSR1)
        for one in processes:
            assert one.wait(LIMIT_SECONDS) == 0
    finally:
        for one in processes:
            one.kill()
            one.wait(LIMIT_SECONDS)
    return [read_saves(folder, rank)[1:] for rank in everyone]


@pytest.fixture
def board():
    made = rank_environment.RankAgreement()
    made.renew()
    yield made.variables
    made.close()


@pytest.mark.processes
@pytest.mark.story
def test_ranks_of_a_container_save_at_the_same_steps(tmp_path, board):
    local = {"LOCAL_WORLD_SIZE": "3", **board}
    saves = ask_often(tmp_path, begin_ranks(tmp_path, 3, **local))
    assert len(saves[0]) == REQUESTS
    assert saves[1:] == saves[:1] * 2


def torch_meeting() -> dict[str, str]:
    """Return a rendezvous of PyTorch, or skip the test if it is not installed."""
    if not INSTALLED.exists():
        pytest.skip("pytorch is not installed; `make test-frameworks` does it")
    with socket.create_server(("127.0.0.1", 0)) as free:
        return {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}


@pytest.mark.processes
@pytest.mark.frameworks
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "ways",
    [
        {"LOCAL_WORLD_SIZE": "1"},
        {"LOCAL_WORLD_SIZE": "2", rank_environment.AGREEMENT: "/proc/0/fd/3"},
    ],
    ids=["on several machines", "not allowed to open the board"],
)
def test_ranks_agree_by_torch(tmp_path, ways):
    ranks = begin_ranks(tmp_path, 2, "torch", python=(str(INSTALLED),), **ways, **torch_meeting())
    saves = ask_often(tmp_path, ranks)
    assert len(saves[0]) == REQUESTS
    assert saves[1] == saves[0]


@pytest.fixture(autouse=True)
def alone(monkeypatch):
    """Reset the state of the module for each test."""
    for name in ("RANK", "WORLD_SIZE", "DLJOB_AGREEMENT", "DLJOB_CHECKPOINT_SIGNAL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(training, "_agreements", [])
    monkeypatch.setattr(training._Request, "is_open", False)
    monkeypatch.setattr(training._Request, "_listens_to", set())
    monkeypatch.setattr(training._Reporter, "_due", 0.0)
    former = signal.getsignal(signal.SIGUSR1)
    yield
    signal.signal(signal.SIGUSR1, former)


def test_module_works_without_dljob(tmp_path):
    assert training.folder(tmp_path / "own").is_dir()
    assert training.latest() is None
    assert not training.should_save(1)
    assert (training.batch_size(64), training.process_batch_size(32)) == (64, 32)
    assert training.learning_rate_factor() == 1.0
    assert training.is_leader()
    training.report(1, loss=0.5)


def test_request_counts_once_and_chains_handlers(monkeypatch):
    heard = []
    signal.signal(signal.SIGUSR1, lambda *_: heard.append(1))
    monkeypatch.setenv("DLJOB_CHECKPOINT_SIGNAL", "SIGUSR1")
    assert not training.should_save(1)
    os.kill(os.getpid(), signal.SIGUSR1)
    assert [training.should_save(step) for step in (2, 3)] == [True, False]
    assert heard == [1]


def test_offered_variables_are_read(monkeypatch, tmp_path):
    saving = Checkpoint(
        signal="SIGUSR1", path=str(tmp_path), complete=Complete.MARKER, marker="DONE"
    )
    file = tmp_path / "progress.jsonl"
    settings = Training(("python",), checkpoint=saving, progress=Progress(file=str(file)))
    for name, value in assembling.offer({"PYTHONPATH": "/own"}, settings).items():
        monkeypatch.setenv(name, value)
    # A variable of the user is left as it is.
    own = assembling.offer({"DLJOB_CHECKPOINT_DIR": "/own"}, settings)
    assert own["DLJOB_CHECKPOINT_DIR"] == "/own"
    assert os.environ["PYTHONPATH"] == f"/own:{assembling.MODULES}"
    assert training.folder("elsewhere") == tmp_path

    training.report(3, epoch=0.5, loss=0.25)
    assert json.loads(file.read_text()) == {"iteration": 3, "epoch": 0.5, "loss": 0.25}
    monkeypatch.setenv("RANK", "1")
    training._Reporter._due = 0.0
    training.report(4)
    assert file.read_text().count("\n") == 1

    step = tmp_path / "step-3"
    step.mkdir()
    (step / "weights").write_bytes(b"1")
    training.mark_complete(step)
    assert sorted(path.name for path in step.iterdir()) == ["DONE", "weights"]
    assert (step / "DONE").stat().st_size > 0


def test_lost_report_is_named_once_and_never_raises(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(training._Reporter, "_has_complained", False)
    monkeypatch.setenv("DLJOB_PROGRESS_SOCKET", str(tmp_path / "none.sock"))
    for step in (1, 2):
        training._Reporter._due = 0.0
        training.report(step)
    assert capsys.readouterr().err.count("progress cannot be reported") == 1


def test_report_keeps_its_step_with_odd_metrics(monkeypatch, tmp_path, capsys):
    file = tmp_path / "progress.jsonl"
    monkeypatch.setenv("DLJOB_PROGRESS_FILE", str(file))
    monkeypatch.setattr(training._Reporter, "_left_out", set())
    odd: dict[str, Any] = {
        "val loss": 1.0,
        "loss": float("nan"),
        "top5": float("-inf"),
        "note": "high",
        "list": [1],
    }
    for step in (1, 2):
        training._Reporter._due = 0.0
        training.report(step, epoch=float("inf"), good=0.5, **odd)
    training._Reporter._due = 0.0
    unlike: Any = ("later", "0.25")
    training.report(unlike[0], good=unlike[1])
    reported = [json.loads(line) for line in file.read_text().splitlines()]
    assert reported == [
        {"iteration": 1, "good": 0.5},
        {"iteration": 2, "good": 0.5},
        {"good": 0.25},
    ]
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 7
    for name in (*odd, "epoch", "step"):
        assert sum(f'"{name}" is left out of reports: it is ' in line for line in said) == 1


def test_ranks_that_cannot_agree_get_a_remedy(monkeypatch, board):
    monkeypatch.setenv("WORLD_SIZE", "2")
    # As after gosu: the file of the SideCar belongs to another user.
    monkeypatch.setenv(rank_environment.AGREEMENT, "/proc/0/fd/3")
    for local, remedy in (
        ("1", r"after torch\.distributed\.init"),
        ("2", r"may not open /proc/0/fd/3 .*init_process_group"),
    ):
        monkeypatch.setenv("LOCAL_WORLD_SIZE", local)
        with pytest.raises(RuntimeError, match=remedy):
            training.should_save(1)


def test_trial_asks_for_no_save_a_second_time(monkeypatch, board):
    path = board[rank_environment.AGREEMENT]
    monkeypatch.setattr(training._Request, "is_open", True)
    before = training._Board(path, 0, world=1)
    assert [before.take_request(step) for step in (7, 8)] == [False, True]
    assert not before.take_request(9)
    after = training._Board(path, 0, world=1)
    assert not after.take_request(10)
    training._Request.is_open = True
    assert [after.take_request(step) for step in (11, 12)] == [False, True]
    training._Request.is_open = True
    assert not after.take_request(13)
    # One that is agreed and not reached stays due.
    assert training._Board(path, 0, world=1).take_request(14)


def test_restart_by_a_launcher_ignores_former_steps(monkeypatch, board):
    path = board[rank_environment.AGREEMENT]
    first = [training._Board(path, rank, world=2) for rank in (0, 1)]
    for each in first:
        assert not each.take_request(5000)
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    again = [training._Board(path, rank, world=2) for rank in (0, 1)]
    training._Request.is_open = True
    assert [again[0].take_request(step) for step in (11, 12)] == [False, True]
    assert [again[1].take_request(step) for step in (11, 12)] == [False, True]
