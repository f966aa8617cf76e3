"""
Keeps one container, as a process that the server can watch, end and start again.

:mod:`dljob.local.pods.sidecar_processes` starts it in place of a SideCar, with the lock of the pod. The keeper removes any
container of this name, runs the container, and at the end proves that it is gone. A keeper that is killed leaves the
container, which the next keeper removes first. So no GPU gets two masters. If nothing is to run, the keeper only proves
that the container is gone, and becomes a SideCar on the machine that reports so.

The proof has two parts: the engine knows no container of this name, and ``/proc`` shows no PID 1 of a container with this
socket among its arguments. PID 1 ends after all other processes of its container.

Only the standard library is loaded, because each job has a keeper for as long as it runs.
"""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

PR_SET_PDEATHSIG = 1
ASK_SECONDS = 60.0
PAUSES = (0.05, 0.2, 1.0, 5.0)
"""The waits before the proof is tried again; the last one repeats."""
FORWARDED = (signal.SIGTERM, signal.SIGINT)
NOT_BEGUN = range(125, 128)
"""The exit statuses of podman and docker if the container, or the SideCar in it, could not start."""
LAST_BYTES = 1 << 14
EXIT_UNAVAILABLE = 69


class Container:
    def __init__(self, engine: str, name: str, *, socket: str) -> None:
        self._engine = engine
        self._name = name
        self._socket = socket

    def remove(self) -> None:
        """Return when the container and its processes are proven gone."""
        tries = 0
        logged = ""
        while why := self._why_there():
            if tries and why != logged:
                _say(f"ContainerStays: {why}")
                logged = why
            time.sleep(PAUSES[min(tries, len(PAUSES) - 1)])
            tries += 1

    def _why_there(self) -> str:
        """Try to remove the container; return why it is not proven gone."""
        removed = self._ask("rm", "--force", self._name)
        there = self._ask("container", "inspect", "--format={{.Id}}", self._name)
        if there.returncode == 0:
            return f"{self._engine} cannot remove it ({_last(removed.stderr)})"
        if "no such" not in there.stderr.lower():
            return f"{self._engine} does not say whether it exists ({_last(there.stderr)})"
        if left := find_first_processes(self._socket):
            for pid in left:
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
            return f"its process {left[0]} still lives"
        return ""

    def _ask(self, *words: str) -> subprocess.CompletedProcess[str]:
        command = [self._engine, *words]
        try:
            return subprocess.run(  # noqa: S603 - words of our own
                command, capture_output=True, text=True, check=False, timeout=ASK_SECONDS
            )
        except subprocess.TimeoutExpired:
            return subprocess.CompletedProcess(command, 1, "", f"no answer in {ASK_SECONDS:g} s")
        except OSError as error:
            return subprocess.CompletedProcess(command, 1, "", str(error))


def find_first_processes(socket: str) -> list[int]:
    """Find the processes that are PID 1 of a namespace with this socket among their arguments."""
    wanted, found = os.fsencode(f"--socket={socket}"), []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (folder / "cmdline").read_bytes().split(b"\0")
            if wanted not in words:
                continue
            lines = (folder / "status").read_text(errors="replace").splitlines()
            numbers = next((line.split()[1:] for line in lines if line[:6] == "NSpid:"), [])
            if len(numbers) > 1 and numbers[-1] == "1":
                found.append(int(folder.name))
    return found


def keep(container: Container, command: Sequence[str]) -> int:
    """Run the container until it ends."""
    container.remove()
    parent = os.getpid()

    def prepare() -> None:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(EXIT_UNAVAILABLE)

    client = subprocess.Popen(  # noqa: S603 - composed by dljob.local.containers.engines
        list(command),
        stdin=subprocess.DEVNULL,
        preexec_fn=prepare,  # noqa: PLW1509 - it takes no lock
    )
    for signum in FORWARDED:
        signal.signal(signum, lambda signum, _: client.send_signal(signum))
    status = client.wait()
    container.remove()
    if status in NOT_BEGUN:
        _say(f"ContainerCannotStart: {_last(_read_log())}")
        return EXIT_UNAVAILABLE
    return status if status >= 0 else 128 - status


def _last(text: str) -> str:
    return (text.strip().splitlines() or ["it says nothing"])[-1]


def _read_log() -> str:
    """Read the last output of this process and the engine, if that is a file."""
    try:
        with open("/proc/self/fd/2", "rb") as log:  # noqa: PTH123 - a descriptor, not a path
            log.seek(-min(LAST_BYTES, log.seek(0, os.SEEK_END)), os.SEEK_END)
            return log.read().decode(errors="replace")
    except OSError:
        return ""


def _say(text: str) -> None:
    # In the form of a SideCar's log, which the server reads.
    sys.stderr.write(f"dljob-sidecar ERROR {text}\n")
    sys.stderr.flush()


def main() -> int:
    """Read ``run|prove ENGINE NAME --socket=PATH WORD ...``."""
    mode, engine, name, socket, *command = sys.argv[1:]
    container = Container(engine, name, socket=socket.removeprefix("--socket="))
    if mode == "run":
        return keep(container, command)
    container.remove()
    if command:
        os.execv(command[0], command)  # noqa: S606 - the SideCar that reports the proof
    return 0


if __name__ == "__main__":
    sys.exit(main())
