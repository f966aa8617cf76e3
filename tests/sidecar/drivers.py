"""
Tools of the supervisor's tests: a harness as a process, and a look at all processes.

Every wait is for an event, with a limit that only a broken program reaches.
"""

from __future__ import annotations

import inspect
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from tornado import httpclient

from tests.servers.ports import choose_ports

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
LIMIT_SECONDS = 240.0
LONGEST_READ = 1 << 18

T = TypeVar("T")


def wait_until(ask: Callable[[], T | None], *, what: str) -> T:
    end = time.monotonic() + LIMIT_SECONDS
    while True:
        answer = ask()
        if answer:
            return answer
        assert time.monotonic() < end, f"{what} has not come"
        time.sleep(0.01)


def list_pids() -> Iterator[int]:
    """Yield all processes; pathlib would be ten times as slow."""
    return (int(name) for name in os.listdir("/proc") if name.isdigit())  # noqa: PTH208


def run_program(
    command: Sequence[str], *, check: bool = False, timeout: float = LIMIT_SECONDS, **options: Any
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, and capture its output."""
    return subprocess.run(
        command, capture_output=True, text=True, check=check, timeout=timeout, **options
    )


def find_processes(token: str) -> list[int]:
    """Return the living processes with the token in their command line."""
    word = token.encode()
    return [pid for pid in list_pids() if word in read_proc(pid, "cmdline") and is_alive(pid)]


def read_proc(pid: int, name: str) -> bytes:
    """Return a file of ``/proc`` of a process; empty if it is gone."""
    try:
        file = os.open(f"/proc/{pid}/{name}", os.O_RDONLY)
    except OSError:
        return b""
    try:
        return os.read(file, LONGEST_READ)
    except OSError:
        return b""
    finally:
        os.close(file)


def read_state(pid: int) -> str:
    """Return the state letter of a process; ``X`` if it is gone."""
    state = read_proc(pid, "stat").rpartition(b")")[2].split()
    return state[0].decode() if state else "X"


def is_alive(pid: int) -> bool:
    return read_state(pid) not in "ZX"


def find_children(pid: int) -> set[int]:
    """Return the processes that any thread of a process has started and that run."""
    try:
        threads = os.listdir(f"/proc/{pid}/task")  # noqa: PTH208
    except OSError:
        return set()
    # A thread may end between the listing and the reading.
    listings = (read_proc(pid, f"task/{thread}/children") for thread in threads)
    return {int(child) for each in listings for child in each.split()}


@contextmanager
def witnessed() -> Iterator[str]:
    """Yield a token for the command lines of a test; no process with it may survive."""
    name = f"witness-{uuid.uuid4().hex}"
    try:
        yield name
        # The kernel ends the processes of a killed SideCar, slowly on a busy machine.
        with suppress(AssertionError):
            wait_until(lambda: not find_processes(name), what="the end of all processes")
    finally:
        left = find_processes(name)
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    assert not left


class Driver:
    """A harness, and all its events so far."""

    def __init__(
        self,
        folder: Path,
        mark: str,
        *,
        keep: str = "",
        python: str = sys.executable,
        **training: Any,
    ) -> None:
        training.setdefault("log_file", str(folder / "log"))
        outputs = [training.pop(name, None) for name in ("stdout", "stderr")]
        out, err = (os.open(path, os.O_WRONLY | os.O_APPEND) if path else None for path in outputs)
        self.log = Path(training["log_file"] or folder / "log")
        self.events: list[dict[str, Any]] = []
        """All events, including those that no test waited for."""
        self._queue: queue.Queue[dict[str, Any] | None] = queue.Queue()
        # A separate queue, so that waiting for facts does not consume events.
        self._facts: queue.Queue[dict[str, Any] | None] = queue.Queue()
        answers, channel = os.pipe()
        tornado = Path(inspect.getfile(httpclient)).parent.parent
        path = [training.pop("extra_path", ""), str(ROOT / "sidecar"), str(tornado)]
        environment = {**os.environ, "PYTHONPATH": ":".join(filter(None, path))}
        self.process = subprocess.Popen(
            [python, str(HERE / "harness.py"), json.dumps(training), mark, str(channel), keep],
            stdin=subprocess.PIPE,
            pass_fds=[channel],
            env=environment,
            stdout=out,
            stderr=err,
        )
        for descriptor in (channel, out, err):
            if descriptor is not None:
                os.close(descriptor)
        self._reader = threading.Thread(target=self._read, args=[answers], daemon=True)
        self._reader.start()
        self.pid = self.wait_for("Ready")["pid"]

    def _read(self, answers: int) -> None:
        with os.fdopen(answers) as lines:
            for line in lines:
                event = json.loads(line)
                self.events.append(event)
                (self._facts if event["event"] == "Facts" else self._queue).put(event)
        self._queue.put(None)
        self._facts.put(None)

    def call(self, name: str, **what: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"call": name, **what}).encode() + b"\n")
        self.process.stdin.flush()

    def start(self, attempt: int = 1, *, gpus: int = 1, processes: int = 1) -> None:
        names = [str(index) for index in range(gpus)]
        [port] = choose_ports(1)
        self.call("start", gpus=names, processes=processes, attempt=attempt, port=port)

    def begin(self) -> Driver:
        """Start a training, and wait until it says that it is ready."""
        self.start()
        self.wait_for_log("ready")
        return self

    def wait_for(self, name: str, **what: Any) -> dict[str, Any]:
        """Return the next event of this name with these fields."""
        while True:
            event = self._take(self._queue, name)
            failed = name.replace("Done", "Failed") != name and event["event"].endswith("Failed")
            assert not failed, event
            if event["event"] == name and what.items() <= event.items():
                return event

    def save(self, event: str = "CheckpointDone") -> dict[str, Any]:
        """Ask for a checkpoint, and return this answer."""
        self.call("checkpoint")
        return self.wait_for(event)

    def _take(self, events: queue.Queue[dict[str, Any] | None], name: str) -> dict[str, Any]:
        try:
            event = events.get(timeout=LIMIT_SECONDS)
        except queue.Empty:
            raise AssertionError(f"{name} has not come, but {self.events}") from None
        assert event is not None, f"the harness ended while {name} was waited for"
        return event

    def facts(self) -> dict[str, Any]:
        self.call("facts")
        return self._take(self._facts, "Facts")

    def wait_for_fact(self, ask: Callable[[dict[str, Any]], Any], what: str) -> dict[str, Any]:
        """Return the first facts that satisfy ``ask``."""

        def look() -> dict[str, Any] | None:
            facts = self.facts()
            return facts if ask(facts) else None

        return wait_until(look, what=what)

    def wait_for_problem(self, name: str, *, about: str = "") -> dict[str, Any]:
        """Return the first problem of this name whose message contains ``about``."""

        def find(facts: dict[str, Any]) -> list[dict[str, Any]]:
            problems = facts["problems"]
            return [one for one in problems if one["name"] == name and about in one["message"]]

        return find(self.wait_for_fact(find, f"{name} {about}"))[0]

    def wait_for_log(self, text: str, count: int = 1) -> str:
        def look() -> str | None:
            log = self.read_log()
            return log if log.count(text) >= count else None

        return wait_until(look, what=f"{text!r} in the log")

    def read_log(self) -> str:
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def stop_all(self, attempt: int = 1) -> None:
        self.call("kill")
        self.wait_for("Gone", attempt=attempt)

    def close(self) -> None:
        """End the harness, by closing its input if possible."""
        if self.process.poll() is None:
            assert self.process.stdin is not None
            self.process.stdin.close()
            try:
                self.process.wait(LIMIT_SECONDS)
            except subprocess.TimeoutExpired:
                self.process.kill()
        self.process.wait(LIMIT_SECONDS)
        if self.process.stdin is not None and not self.process.stdin.closed:
            self.process.stdin.close()
        self._reader.join(LIMIT_SECONDS)


def read_children(pid: int) -> list[int]:
    """Return the children of a process; the only one of a keeper is the SideCar itself."""
    try:
        text = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii")
    except OSError:
        return []
    return [int(child) for child in text.split()]
