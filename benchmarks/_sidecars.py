"""A real SideCar for the benchmarks: its controller, and reports of the trainings and `/proc`."""

import contextlib
import http.client
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple, Self

from _progress import ROOT, attempts

from dljob_wire import codec
from dljob_wire.messages import Peer, Phase, Run, State

MODULE = (sys.executable, "-m", "dljob_sidecar")
LONGEST_S = 600.0
"""Importing PyTorch alone takes minutes where thirty processes wait for two cores."""
POLL_S = 20
FIRST_PORT = 20_000
"""The trainings know their generation by their rendezvous port, which they get as PyTorch does."""


class Connection(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path: Path) -> None:
        super().__init__("dljob", timeout=LONGEST_S)
        self._path = str(path)

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(self._path)


NO_FIELDS: Final[Mapping[str, Any]] = MappingProxyType({})


def write_fields(fields: Mapping[str, Any]) -> str:
    """Write the fields of ``--training``; those of the checkpoint have names such as ``checkpoint.path``."""
    written: dict[str, Any] = {}
    for name, value in fields.items():
        group, _, inner = name.rpartition(".")
        if isinstance(value, Mapping):
            written.setdefault(name, {}).update(value)
        else:
            (written.setdefault(group, {}) if group else written)[inner] = value
    return json.dumps(written)


class SideCar:
    """One start of a container: as PID 1 of a namespace where that is allowed, as on any machine."""

    def __init__(
        self,
        folder: Path,
        command: Sequence[str],
        *,
        options: Mapping[str, Any] = NO_FIELDS,
        flags: Sequence[str] = (),
        program: Sequence[str] = MODULE,
    ) -> None:
        self.socket = folder / "control"
        self.log = folder / "log"
        training = {"framework": "pytorch", "expectsGpus": False, **options}
        start = [*program, "run", "--socket", str(self.socket), *flags]
        start += ["--training", write_fields(training), "--", *command]
        environment = {**os.environ, "PYTHONPATH": str(ROOT / "sidecar")}
        with self.log.open("ab") as log:
            self.began = time.monotonic()
            self.process = subprocess.Popen(
                start, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        self.incarnation = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.end()

    # --- as the controller ------------------------------------------------------------------

    def ask(self, method: str, path: str, body: bytes | None = None) -> State:
        """Send one request over a connection of its own."""
        connection = Connection(self.socket)
        try:
            connection.request(method, path, body)
            answer = connection.getresponse()
            text = answer.read()
        finally:
            connection.close()
        if answer.status != http.HTTPStatus.OK:
            raise RuntimeError(text.decode())
        return codec.decode(State, text)

    def state(self) -> State:
        return self.ask("GET", "/v1/state")

    def wait_ready(self) -> float:
        """Return how many seconds it took from its start to its first answer."""
        for _ in attempts("the SideCar answers"):
            if self.process.poll() is not None:
                raise RuntimeError(self.log.read_text(encoding="utf-8", errors="replace"))
            # It is not there, or does not listen yet.
            with contextlib.suppress(FileNotFoundError, ConnectionError):
                self.incarnation = self.state().incarnation
                return time.monotonic() - self.began
            time.sleep(0.002)
        raise AssertionError

    def wait_for(
        self,
        is_reached: Callable[[State], bool],
        what: str,
        *,
        poll_s: float = POLL_S,
    ) -> State:
        """Wait by the state; ``poll_s`` is short where the state does not change when it is reached."""
        state = self.state()
        for _ in attempts(what, LONGEST_S):
            if is_reached(state):
                break
            state = self.ask("GET", f"/v1/state?after={state.version}&wait={poll_s:g}")
        return state

    def wait_running(self, generation: int) -> State:
        return self.wait_for(
            lambda s: s.phase is Phase.RUNNING and s.held_generation == generation,
            f"the SideCar runs generation {generation}",
        )

    def put(self, generation: int, *, gpus: int = 1, processes: int = 1) -> float:
        """Declare a run, and return when its first byte was about to be sent."""
        run = Run(
            epoch=1,
            generation=generation,
            incarnation=self.incarnation,
            gpus=tuple(str(index) for index in range(gpus)),
            rank_offset=0,
            world_size=processes,
            peers=(Peer("localhost", processes),),
            rendezvous_port=FIRST_PORT + generation,
        )
        body = codec.encode_target(run)
        began = time.monotonic()
        self.ask("PUT", "/v1/target", body)
        return began

    def end(self) -> None:
        """Let the whole tree of processes end, as a kubelet would, and wait for it."""
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(LONGEST_S)

    # --- as the kernel sees it --------------------------------------------------------------

    def pids(self) -> list[int]:
        """Return all that is the SideCar's own, while nothing is trained: keeper, agent, helper."""
        return list(iter_tree(self.process.pid))


def iter_tree(pid: int) -> Iterator[int]:
    yield pid
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii")
    for child in children.split():
        yield from iter_tree(int(child))


def read_processor_seconds(pid: int) -> float:
    """Return the processor time of a process, to the nanosecond and with that of ended threads."""
    # The clock of another process, as clock_getcpuclockid() makes it.
    return time.clock_gettime((~pid << 3) | 2)


class Memory(NamedTuple):
    """The memory of processes, in MB of a million bytes."""

    sum_of_rss: float
    """As `ps` has it: what two of them share counts twice."""
    once: float
    """Each page once: the memory that would be free if they ended, and no other process used these files."""


def measure_memory(pids: Sequence[int]) -> Memory:
    rss, private = 0, 0
    shared: dict[str, int] = {}
    for pid in pids:
        for place, sizes in iter_mappings(pid):
            common = sizes["Shared_Clean"] + sizes["Shared_Dirty"]
            rss += sizes["Rss"]
            private += sizes["Rss"] - common
            shared[place] = max(shared.get(place, 0), common)
    return Memory(
        round(rss * 1024 / 1e6, 1), round((private + sum(shared.values())) * 1024 / 1e6, 1)
    )


def count_held(pids: Sequence[int]) -> dict[str, float]:
    """Count the resources that a repeated action could leak."""
    return {
        "threads": sum(_count_entries(f"/proc/{pid}/task") for pid in pids),
        "descriptors": sum(_count_entries(f"/proc/{pid}/fd") for pid in pids),
        "resident_mb": measure_memory(pids).once,
    }


def _count_entries(folder: str) -> int:
    return sum(1 for _ in Path(folder).iterdir())


def iter_mappings(pid: int) -> Iterator[tuple[str, dict[str, int]]]:
    """Yield what is mapped where, with its sizes in KiB; what a fork shares is at one address."""
    place, sizes = "", dict[str, int]()
    for line in Path(f"/proc/{pid}/smaps").read_text(encoding="utf-8").splitlines():
        first, *rest = line.split()
        if first.endswith(":"):
            if rest[-1] == "kB":
                sizes[first[:-1]] = int(rest[0])
            continue
        if sizes:
            yield place, sizes
        address, _, offset, _, inode, *path = line.split(maxsplit=5)
        place = f"{path[0]}@{offset}" if inode != "0" else address
        sizes = {}
    if sizes:
        yield place, sizes


# --- reports of the trainings ----------------------------------------------------------------


class Telling(NamedTuple):
    """A moment in the life of a training process, by its own reading of the machine's clock."""

    generation: int
    rank: int
    what: str
    at: float


TELL = """
def tell(what, at):
    import os, sys
    generation = int(os.environ["MASTER_PORT"]) - 20000
    line = "%d %s %s %.9f\\n" % (generation, os.environ["RANK"], what, at)
    pipe = os.open(sys.argv[1], os.O_WRONLY)
    os.write(pipe, line.encode())
    os.close(pipe)
"""
"""The first lines of a benchmark's training; its first argument is the pipe."""


class Tellings:
    """The end of the pipe into which the trainings write their moments."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "tellings"
        os.mkfifo(self.path)
        # At both ends, so that it is never closed.
        self._pipe = os.open(self.path, os.O_RDWR)
        self._unread = b""

    def next(self) -> Telling:
        for left in attempts("a training writes its next moment", LONGEST_S):
            if b"\n" in self._unread:
                break
            if select.select([self._pipe], [], [], left)[0]:
                self._unread += os.read(self._pipe, 65536)
        line, _, self._unread = self._unread.partition(b"\n")
        generation, rank, what, at = line.decode().split()
        return Telling(int(generation), int(rank), what, float(at))

    def wait_for(self, generation: int, what: str, *, processes: int = 1) -> float:
        """Return when the last of ``processes`` processes had started."""
        moments: list[float] = []
        while len(moments) < processes:
            telling = self.next()
            if (telling.generation, telling.what) == (generation, what):
                moments.append(telling.at)
        return max(moments)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._pipe)
