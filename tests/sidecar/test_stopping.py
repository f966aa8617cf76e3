"""The job saves itself before it is stopped, and is believed only when it has."""

from __future__ import annotations

import asyncio
import errno
import shlex
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from types import SimpleNamespace
from typing import Any

import pytest

from dlsidecar.behaviour.events import CheckpointDone
from dlsidecar.checkpoints import checkpoint_files, requests
from dlsidecar.checkpoints.confirming import Watch
from dlsidecar.checkpoints.requests import Request
from dlsidecar.linux.recipients import Recipients
from dlsidecar.linux.spawning import Ended, Reaper
from dlsidecar.observing.file_threads import Scout
from dlsidecar.processes.saving import CheckpointRequests
from dlsidecar.processes.supervising import Processes
from dlsidecar.settings import Complete, Confirmation, Saving
from tests.sidecar.drivers import LIMIT_SECONDS, find_processes, wait_until

pytestmark = pytest.mark.processes


def start_saving(drive, tmp_path, **saving):
    path = tmp_path / "checkpoints"
    path.mkdir()
    driver = drive(f"save={path / 'latest'}", saving={"path": str(path), **saving})
    driver.start()
    driver.wait_for_log("ready")
    return driver


def test_a_signal_confirmed_by_a_new_file(drive, tmp_path):
    driver = start_saving(drive, tmp_path, signal="SIGUSR1", confirm="file")
    driver.call("checkpoint")
    driver.wait_for("CheckpointDone", attempt=1)
    assert (tmp_path / "checkpoints" / "latest").exists()
    driver.stop_all()


def test_a_file_that_was_there_before_confirms_nothing(drive, tmp_path):
    driver = start_saving(drive, tmp_path, signal="SIGURG", confirm="file")
    (tmp_path / "checkpoints" / "old").write_text("old")
    driver.call("checkpoint")
    # A process without a handler ignores SIGURG: no answer comes, and we are not stuck.
    driver.facts()
    driver.call("terminate")
    driver.wait_for("Gone")
    assert not any(event["event"].startswith("Checkpoint") for event in driver.events)


def test_a_signal_confirmed_by_a_line_of_the_log(drive, tmp_path):
    driver = start_saving(
        drive, tmp_path, signal="SIGUSR1", confirm="log", confirm_log=r"^saved \S+latest"
    )
    driver.call("checkpoint")
    driver.wait_for("CheckpointDone")
    driver.stop_all()


@pytest.mark.parametrize("is_tailed", [True, False])
def test_one_that_ends_with_the_word_that_confirms_has_saved(drive, tmp_path, is_tailed):
    say = "signal.signal(10, lambda *_: (print('saved', flush=True), os._exit(0)))"
    # In one piece: an unbuffered print writes the end of its line apart, and the signal may come between.
    code = f"import os, signal, time; {say}; os.write(1, b'ready\\n'); time.sleep(1000)"
    saving = {"signal": "SIGUSR1", "confirm": "log", "confirm_log": "^saved"}
    output = tmp_path / "output"
    output.touch()
    way = {"log_file": str(output)} if is_tailed else {"log_file": "", "stdout": str(output)}
    driver = drive(command=[sys.executable, "-c", code], saving=saving, **way)
    driver.log = output
    driver.start()
    driver.wait_for_log("ready")
    driver.call("checkpoint")
    driver.wait_for("RankEnded", exit_code=0)
    # As the machine has it, which knows by now that all have ended.
    driver.call("terminate")
    # The word may have been read before its end was seen.
    if all(event["event"] != "CheckpointDone" for event in driver.events):
        driver.wait_for("CheckpointDone")
    driver.wait_for("Gone")


@pytest.mark.parametrize("look_seconds", [0.0, pytest.param(0.3, marks=pytest.mark.slow)])
def test_one_that_ends_without_the_word_that_confirms_has_not_saved(drive, tmp_path, look_seconds):
    """Two files are read to their ends, however long each look takes, so that the lack of the word is certain."""
    progress = tmp_path / "progress"
    progress.touch()
    code = "import signal, sys, time; signal.signal(10, lambda *_: sys.exit(0)); print('ready', flush=True)"
    command = [sys.executable, "-c", f"{code}; time.sleep(1000)"]
    saving = {"signal": "SIGUSR1", "confirm": "log", "confirm_log": "^saved"}
    files = {"progress_file": str(progress), "look_seconds": look_seconds}
    driver = drive(command=command, saving=saving, **files)
    driver.start()
    driver.wait_for_log("ready")
    driver.call("checkpoint")
    assert requests.UNCONFIRMED in str(driver.wait_for("CheckpointFailed")["problem"])
    driver.wait_for("Gone")


def test_a_signal_confirmed_by_the_end(drive):
    # It catches SIGUSR1, and the handler ends it.
    code = "import signal, sys, time; signal.signal(10, lambda *_: sys.exit(0)); print('ready', flush=True)"
    command = [sys.executable, "-c", f"{code}; time.sleep(1000)"]
    driver = drive(command=command, saving={"signal": "SIGUSR1", "confirm": "exit"})
    driver.start()
    driver.wait_for_log("ready")
    driver.call("checkpoint")
    driver.wait_for("CheckpointDone")
    driver.wait_for("Gone")


def test_a_job_without_a_handler_is_not_killed_by_the_signal(drive):
    driver = drive(saving={"signal": "SIGUSR1", "confirm": "exit"})
    driver.start()
    driver.wait_for_log("ready")
    driver.call("checkpoint")
    assert "SIGUSR1" in str(driver.wait_for("CheckpointFailed")["problem"])
    assert driver.facts()["processes"][0]["signal"] is None
    driver.stop_all()


def test_a_command_confirms_by_its_end(drive, tmp_path):
    made = tmp_path / "made"
    command = ["sh", "-c", f"echo $CUDA_VISIBLE_DEVICES > {shlex.quote(str(made))}"]
    driver = drive(saving={"command": command, "confirm": "exit"})
    driver.start()
    driver.wait_for_log("ready")
    driver.call("checkpoint")
    driver.wait_for("CheckpointDone")
    assert made.read_text() == "0\n"
    driver.stop_all()


@pytest.mark.parametrize(
    ("command", "reason"),
    [(["sh", "-c", "exit 4"], "exit code 4"), (["no-such-command"], "not found in PATH")],
)
def test_a_command_that_fails_is_told(drive, command, reason):
    driver = drive(saving={"command": command, "confirm": "exit"})
    driver.start()
    driver.wait_for_log("ready")
    driver.call("checkpoint")
    assert reason in str(driver.wait_for("CheckpointFailed")["problem"])
    driver.stop_all()


def test_a_hanging_command_goes_down_with_the_rest(drive, token):
    hang = [sys.executable, "-S", "-c", "import time; time.sleep(1000)", token]
    driver = drive(saving={"command": hang, "confirm": "exit"})
    driver.start()
    driver.wait_for_log("ready")
    driver.call("checkpoint")
    wait_until(lambda: len(find_processes(token)) == 3, what="the command")
    driver.stop_all()
    assert len(find_processes(token)) == 1


@pytest.mark.parametrize(("status", "event"), [(200, "CheckpointDone"), (500, "CheckpointFailed")])
def test_a_hook_over_http(drive, tmp_path, status, event):
    path = tmp_path / "checkpoints"
    path.mkdir()

    class Hook(BaseHTTPRequestHandler):
        def do_POST(self):
            if status == 200:
                (path / "latest").write_text("saved")
            self.send_response(status)
            self.end_headers()

        def log_message(self, *_):
            pass

    with HTTPServer(("127.0.0.1", 0), Hook) as server:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        hook = f"{server.server_port}/save"
        driver = drive(saving={"http": hook, "confirm": "file", "path": str(path)})
        driver.start()
        driver.wait_for_log("ready")
        driver.call("checkpoint")
        driver.wait_for(event)
        thread.join()
    driver.stop_all()


def test_all_hooks_are_called_at_once_because_ranks_may_save_together(tmp_path):
    """Each hook answers only when the last was called, as one does that gathers a checkpoint."""
    count = 24
    told: list[str] = []

    async def story() -> None:
        loop = asyncio.get_running_loop()
        called, end = [], loop.create_future()

        async def hook(reader, writer):
            await reader.readuntil(b"\r\n\r\n")
            called.append(writer)
            if len(called) == count:
                (tmp_path / "latest").write_text("saved")
                for one in called:
                    one.write(b"HTTP/1.1 204 No Content\r\n\r\n")
                    one.close()

        servers = [await asyncio.start_server(hook, "127.0.0.1", 0) for _ in range(count)]
        ports = sorted(server.sockets[0].getsockname()[1] for server in servers)
        ranks = [SimpleNamespace(pid=0, local_rank=port - ports[0], ended=None) for port in ports]
        saving = Saving(
            http=f"{ports[0]}/save", to_all=True, confirm=Confirmation.FILE, path=str(tmp_path)
        )
        Request(
            saving,
            ranks,
            environment={},
            outputs=(1, 2),
            reaper=Reaper(),
            watch=Watch(list, scout := Scout("test")),
            is_output_read=lambda: True,
            tell=end.set_result,
        )
        told.append(await asyncio.wait_for(end, LIMIT_SECONDS))
        scout.close()
        for server in servers:
            server.close()

    asyncio.run(story())
    assert told == [""]


class SlowScout:
    """One who comes back when the test says so."""

    def __init__(self):
        self.out = []
        self.is_lost = False

    def send(self, look, hear):
        self.out.append((look, hear))
        return True

    def come_back(self):
        look, hear = self.out.pop(0)
        hear(look(), 0.0)


def take_it_themselves(pid, _signum, *, to_all):
    return Recipients((pid,))


@pytest.mark.parametrize("count", [1, 2])
def test_who_ends_while_the_path_is_looked_at_is_not_asked(monkeypatch, tmp_path, count):
    """Its number may be that of another process by then."""
    asked: list[int] = []
    monkeypatch.setattr(requests, "send", lambda pid, signum: asked.append(pid))
    monkeypatch.setattr(requests, "find_recipients", take_it_themselves)
    told: list[str] = []

    async def story() -> None:
        scout: Any = SlowScout()
        ranks = [SimpleNamespace(pid=one, local_rank=one, ended=None) for one in range(count)]
        saving = Saving(
            signal="SIGUSR1", to_all=True, confirm=Confirmation.FILE, path=str(tmp_path)
        )
        request = Request(
            saving,
            ranks,
            environment={},
            outputs=(1, 2),
            reaper=Reaper(),
            watch=Watch(list, scout),
            is_output_read=lambda: True,
            tell=told.append,
        )
        ranks[0].ended = Ended(0, None)
        request.hear_end()
        assert request.is_settling == (count == 1)
        while scout.out:
            scout.come_back()
        await asyncio.sleep(0)
        request.cancel()

    asyncio.run(story())
    assert asked == list(range(1, count))
    assert [reason.partition(":")[0] for reason in told] == [requests.UNCONFIRMED] * (count == 1)


def test_a_kill_gives_up_no_checkpoint_that_is_on_its_way_from_memory_to_the_disk(
    monkeypatch, tmp_path
):
    """The processes have ended, and the copy takes longer than the grace and than a last look may."""
    monkeypatch.setattr(requests, "send", lambda *_: None)
    monkeypatch.setattr(requests, "find_recipients", take_it_themselves)
    monkeypatch.setattr(Request, "settling_seconds", 0.0)
    saving = Saving(
        signal="SIGUSR1",
        confirm=Confirmation.FILE,
        complete=Complete.RENAME,
        path=str(tmp_path),
    )
    told: list[Any] = []
    copies: list[Any] = []

    async def story() -> None:
        scout: Any = SlowScout()
        rank = SimpleNamespace(pid=1, local_rank=0, ended=None)
        watch = Watch(list, scout, secure=lambda _unit, _files, hear: copies.append(hear))
        store: Any = SimpleNamespace(saving=saving, make_watch=lambda _: watch)
        environment = SimpleNamespace(given={}, of=lambda _: {})
        starter: Any = SimpleNamespace(attempt=1, trainers=[rank], environment=environment)
        outputs: Any = SimpleNamespace(common=(1, 2))
        asked = CheckpointRequests(
            store,
            starter,
            outputs=outputs,
            reaper=Reaper(),
            report=told.append,
            list_members=list,
        )
        asked.ask(is_trial=False, is_output_read=lambda: True)
        scout.come_back()
        (tmp_path / "latest").write_text("saved")
        rank.ended = Ended(0, None)
        asked.hear_end()
        while not copies:
            scout.come_back()
        processes: Any = object.__new__(Processes)
        processes._requests, processes._starter = asked, starter
        processes._proof = SimpleNamespace(kill=lambda: None)
        processes.kill()
        for _ in range(5):
            await asyncio.sleep(0)
        assert told == []
        copies[0]("")
        for _ in range(5):
            await asyncio.sleep(0)

    asyncio.run(story())
    assert told == [CheckpointDone(1)]


def test_one_that_ends_before_it_confirms_has_not_saved(drive, tmp_path):
    code = "import signal, sys, time; signal.signal(10, lambda *_: sys.exit(0)); print('ready', flush=True)"
    command = [sys.executable, "-c", f"{code}; time.sleep(1000)"]
    saving = {"signal": "SIGUSR1", "confirm": "file", "path": str(tmp_path / "none")}
    driver = drive(command=command, saving=saving)
    driver.start()
    driver.wait_for_log("ready")
    driver.call("checkpoint")
    driver.wait_for("CheckpointFailed")
    driver.wait_for("Gone")


def test_a_file_that_cannot_even_be_asked_what_it_is_stops_nothing(monkeypatch, tmp_path):
    # As on a network file system that has lost it: the kernel tells no kind with the name.
    class Stale:
        name = "stale"

        def is_dir(self, *, follow_symlinks=True):
            raise OSError(errno.ESTALE, "Stale file handle")

        stat = is_dir

    (tmp_path / "latest").write_text("saved")
    whole = checkpoint_files.list_folder
    monkeypatch.setattr(checkpoint_files, "list_folder", lambda path: [Stale(), *whole(path)])
    assert list(checkpoint_files.take_snapshot(str(tmp_path)).files) == ["latest"]
