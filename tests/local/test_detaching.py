"""``dljob up --detach`` and ``dljob down``: one terminal is enough, and none has to stay open."""

import contextlib
import os
import pty
import select
import shutil
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from dljob.cli.verbs.server.controller import report_ready
from dljob.cli.verbs.server.down import find_process
from dljob.client.backend import Away
from dljob.client.local.local_backend import LocalBackend
from dljob.local.folders import Folders
from tests.ctl.running import LONGEST_S, Command, Live, run_apart
from tests.local.ups import Up as ForegroundUp
from tests.local.ups import find_processes, kill_all, replay

real = pytest.mark.processes


class Background(ForegroundUp):
    """A server that ``dljob up --detach`` has started; the command has returned."""

    def __init__(self, root, process):
        self.root = root
        self.backend = LocalBackend(Folders(root).socket)
        self.log = root / "dljob.log"
        self.process = process


@pytest.fixture
def state(root):
    folder = root / "state"
    yield folder
    kill_all(root)


def detach(state, *options):
    """Start a server and return what the command printed, and who asks it."""
    result = run_apart("up", "--gpus", 2, "--state", state, "--detach", *options)
    return result, Background(state, Ended(find_process(Folders(state).socket)))


class Ended:
    """A process that is not our child; to be found while it lives."""

    def __init__(self, pid):
        assert pid is not None
        self.pid = pid
        self._handle = os.pidfd_open(pid)

    def poll(self):
        return 0 if select.select([self._handle], [], [], 0.0)[0] else None

    def wait(self):
        assert select.select([self._handle], [], [], LONGEST_S)[0]


@pytest.mark.story
@real
def test_one_terminal_is_enough(state, root):
    result, up = detach(state)
    assert (result.status, result.stdout) == (0, "")
    assert "2 virtual GPUs" in result.stderr
    assert f"as process {up.process.pid}; its log is {state / 'dljob.log'}" in result.stderr
    # As in $(dljob up --detach): the server has none of the caller's pipes open.
    assert Path(f"/proc/{up.process.pid}/fd/2").readlink() == state / "dljob.log"
    second = run_apart("up", "--gpus", 2, "--state", state, "--detach")
    assert second.status == 1
    assert (
        f"dljob: {state}: dljob up runs there already (process {up.process.pid});"
        " use that one, end it (dljob down), or name another folder with --state"
    ) in second.stderr

    assert up.submit(replay("long", root, iterations=10**6, faster=20.0)).status == 0
    up.until_phase("long", "Running")
    # The training goes on without it, as the command says.
    ended = up("down")
    assert (ended.status, ended.stdout) == (0, "")
    assert ended.stderr == (
        f"dljob up (process {up.process.pid}) has ended. long goes on training;"
        " the next dljob up takes over.\n"
    )
    assert find_processes(root)
    with pytest.raises(Away):
        up.backend.about()


@real
def test_it_goes_on_when_its_terminal_is_closed(state):
    script = "from dljob.cli.main import main; main()"
    words = ["up", "--gpus", "2", "--state", str(state), "--detach"]
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ["PYTHONPATH"] = os.pathsep.join(sys.path)
        os.execv(  # noqa: S606 - the command leads the terminal's session
            sys.executable, [sys.executable, "-c", script, *words]
        )
    told = b""
    with contextlib.suppress(OSError):
        while block := os.read(terminal, 4096):
            told += block
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0, told
    # The command led the session of the terminal: its end and this hang up on all who are left there.
    os.close(terminal)
    assert b"goes on in the background" in told
    assert LocalBackend(Folders(state).socket).about()["policy"] == "foresight"
    assert run_apart("down", "--state", state).status == 0


@real
def test_ctrl_c_during_the_start_leaves_nothing_running(state):
    # A start that waits for ever, for a name that is never written.
    state.mkdir(mode=0o700)
    os.mkfifo(state / "machine")
    with Starting("up", "--virtual-gpus", 1, "--state", state, "--detach") as live:
        assert "Ctrl-C gives up" in live.error_line()
        live.interrupt()
        end = live.rest()
    assert end.status == 130
    assert "no process is left running" in end.stderr
    assert find_processes(state) == []


class Starting(Live):
    """A command whose errors are read while it runs."""

    def error_line(self):
        assert self._process.stderr is not None
        timer = threading.Timer(LONGEST_S, self._process.kill)
        timer.start()
        try:
            return self._process.stderr.readline().decode()
        finally:
            timer.cancel()


def test_down_without_a_server_has_a_remedy(root, capsys):
    result = Command(capsys)("down", "--state", root / "none")
    assert (result.status, result.stdout) == (1, "")
    assert result.stderr == (
        f"dljob: {root / 'none'}: no dljob up runs there; if you mean another one, name its"
        " folder with --state\n"
    )


@real
def test_down_says_so_when_a_server_does_not_end(state):
    _, up = detach(state)
    os.kill(up.process.pid, signal.SIGSTOP)
    result = run_apart("down", "--state", state, "--timeout", "0.5")
    assert result.status == 1
    assert f"kill -KILL {up.process.pid} ends it at once" in result.stderr
    os.kill(up.process.pid, signal.SIGCONT)
    # It was asked to end, and does.
    up.process.wait()
    assert up.process.poll() == 0


def test_systemd_unit_has_the_typed_options(root, capsys):
    typed = ("up", "--gpus", 4, "--policy", "adaptive", "--print-unit")
    result = Command(capsys)(*typed, "--state", root / "a state%")
    assert (result.status, result.stderr) == (0, "")
    (start,) = [line for line in result.stdout.splitlines() if line.startswith("ExecStart=")]
    assert start.endswith(f'dljob up --gpus 4 --policy adaptive --state "{root}/a state%%"')
    assert "\nKillMode=process\n" in result.stdout
    # A training that is killed for memory must not end the service, and inherits its limits.
    for line in ("OOMPolicy=continue", "TasksMax=infinity", "LimitNOFILE=1048576"):
        assert f"\n{line}\n" in result.stdout
    assert not (root / "a state%").exists()
    if shutil.which("systemd-analyze"):
        unit = root / "dljob.service"
        unit.write_text(result.stdout, encoding="utf-8")
        done = subprocess.run(
            ["systemd-analyze", "verify", "--user", unit],
            capture_output=True,
            text=True,
            check=False,
            timeout=LONGEST_S,
            env={**os.environ, "XDG_RUNTIME_DIR": str(root)},
        )
        assert "dljob.service" not in done.stderr, done.stderr


def test_a_unit_cannot_begin_at_the_folder_that_one_happens_to_be_in(root, capsys, monkeypatch):
    monkeypatch.chdir(root)
    (root / "settings.yaml").write_text("seed: 1\n", encoding="utf-8")
    result = Command(capsys)("up", "--gpus", 1, "--print-unit", "--config", "settings.yaml")
    assert result.status == 2
    assert "for a service give the absolute path" in result.stderr


@pytest.mark.parametrize("kind", ["path", "abstract"])
def test_systemd_learns_when_it_answers_and_jobs_cannot_say_so(root, monkeypatch, kind):
    name = str(root / "notify") if kind == "path" else f"@dljob-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as door:
        door.bind(name.replace("@", "\0", 1))
        door.settimeout(LONGEST_S)
        monkeypatch.setenv("NOTIFY_SOCKET", name)
        report_ready()
        assert door.recv(100) == b"READY=1"
    assert "NOTIFY_SOCKET" not in os.environ
