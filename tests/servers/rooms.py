"""
A room of its own for the nodes of a real cluster, in which a kubelet may do what it does to a machine.

A room has its own network, mounts and processes: addresses, bridges, rules and mounts that are made
in it, and files that are written below ``/run``, ``/var/lib`` and ``/var/log``, are invisible
outside. The kernel takes all of that away when the first process of the room ends, containers
included; and that process reads from the tests, so it ends with them, even if they are killed. Of a
machine's files only those elsewhere, and its control groups, are the same inside and outside.

It takes root, ``unshare`` and ``nsenter``.
"""

import ctypes
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Self

from tests.sidecar.drivers import read_children

CLONE_NEWNET = 0x4000_0000
CLONE_NEWPID = 0x2000_0000
OURSELVES = Path("/proc/thread-self/ns")

FURNISH = """
set -eu
mount --make-rshared /
mount -t tmpfs room /run
mount -t tmpfs room /var/log
mkdir /run/lib /run/work
mount -t overlay room -o lowerdir=/var/lib,upperdir=/run/lib,workdir=/run/work /var/lib
ip link set lo up
echo 1 > /proc/sys/net/ipv4/ip_forward
exec "$@"
"""
# Orphans become children of the first process. Where it ignores their ends, the kernel buries them;
# a shell does not ignore them, even if it is asked to.
KEEP = """
import signal, sys
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
print("furnished", flush=True)
sys.stdin.read()
"""
KEEPER = ("/bin/sh", "-c", FURNISH, "sh", sys.executable, "-I", "-S", "-c", KEEP)
UNSHARED = ("--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")


class NoRoom(Exception):
    """The kernel does not let us have one, and why."""


class Room:
    """
    A room that lasts as long as this object is open.

    ``spawn`` makes it a guard for :class:`~tests.servers.processes.Server`. A test itself and its
    ordinary children have to reach the room's network: ``with room.entered(): …``.
    """

    def __init__(self) -> None:
        self._keeper = subprocess.Popen(
            ["unshare", *UNSHARED, "--propagation=private", *KEEPER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self._keeper.stdout is not None
        if not self._keeper.stdout.readline():
            raise NoRoom(self._keeper.communicate()[1].strip())
        [self.first] = read_children(self._keeper.pid)
        """The first process in the room, as the machine counts."""
        self._spawned: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End everything in the room at once, and wait until it is gone."""
        assert self._keeper.stdin is not None
        # From it the keeper reads, and ends. It is not gone before we have buried our children in there.
        self._keeper.stdin.close()
        for process in self._spawned:
            process.wait()
        self._keeper.wait()
        for pipe in (self._keeper.stdout, self._keeper.stderr):
            assert pipe is not None
            pipe.close()

    def spawn(
        self, command: Sequence[str | Path], log: Path, environment: dict[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        """Start a process in the room, its output added to a file."""
        with log.open("ab") as output, self._among_its_processes():
            process = subprocess.Popen(
                [*self._into, *command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
            )
        self._spawned.append(process)
        return process

    def run(self, *command: str | Path, seconds: float) -> str:
        """Run a command in the room; return its output."""
        pipe = subprocess.PIPE
        with self._among_its_processes():
            process = subprocess.Popen(
                [*self._into, *command], stdout=pipe, stderr=pipe, text=True, start_new_session=True
            )
        with process:
            try:
                said, complained = process.communicate(timeout=seconds)
            finally:
                process.kill()
        assert process.returncode == 0, f"{command}: {complained.strip()[-2000:]}"
        return said

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Be on the network of the room: this thread, and the threads and processes it starts meanwhile."""
        with entered_namespace(self._namespace("net"), CLONE_NEWNET):
            yield

    def _among_its_processes(self) -> AbstractContextManager[None]:
        """Have the children of this thread, and not itself, among the processes of the room."""
        return entered_namespace(self._namespace("pid"), CLONE_NEWPID)

    @property
    def _into(self) -> list[str]:
        # Not into its processes: then it could not become the command, but only start it.
        mounts, network = self._namespace("mnt"), self._namespace("net")
        return ["nsenter", f"--mount={mounts}", f"--net={network}", "--"]

    def _namespace(self, kind: str) -> Path:
        return Path(f"/proc/{self.first}/ns/{kind}")


@contextmanager
def entered_namespace(namespace: Path, kind: int) -> Iterator[None]:
    with _opened(OURSELVES / namespace.name) as before:
        with _opened(namespace) as there:
            _enter(there, kind)
        try:
            yield
        finally:
            _enter(before, kind)


@contextmanager
def _opened(namespace: Path) -> Iterator[int]:
    descriptor = os.open(namespace, os.O_RDONLY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _enter(descriptor: int, kind: int) -> None:
    # Python has a function for it from 3.12 on.
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(descriptor, kind) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
