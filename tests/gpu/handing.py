"""Two jobs that hand one GPU over and back under kills; nvidia-smi sees no two of them at once."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from typing import Any

from tests.gpu.place import PROGRAM_MIB, Place
from tests.gpu.starting import Figures
from tests.gpu.witness import Sampler
from tests.local.ups import Up, find_processes, kill_all
from tests.sidecar import drivers
from tests.sidecar.standins import consume

TIMES = 20
KILLS = ("nothing", "the training", "its SideCar", "dljob up")


class Contest:
    """One `dljob up` with one GPU, and two jobs that both want it."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.root = place.folder / "up"
        self.options = ("--gpus", f"{place.index}-{place.index}")
        self.up = Up(self.root, *self.options)

    def begin(self) -> None:
        self.up.ready()
        for name in ("ping", "pong"):
            self.up.submit(self.job(name))
        self.up.until_phase("ping", "Running")
        assert self.up("suspend", "pong").status == 0

    def job(self, name: str) -> dict[str, Any]:
        command = list(consume(PROGRAM_MIB, self.place.token, str(self.root / name)))
        return {
            "apiVersion": "dljob.io/v1alpha1",
            "kind": "DLJob",
            "metadata": {"name": name},
            "spec": {
                "gpus": {"options": [1]},
                "framework": "none",
                "processes": "perNode",
                "training": {"iterations": 10**6},
                "progress": {"log": r"step (?P<iteration>\d+)"},
                "checkpoint": {"trusted": True, "graceSeconds": 1},
                "template": {"spec": {"containers": [{"name": "trainer", "command": command}]}},
            },
        }

    def hand_over(self, giver: str, taker: str, kill: str) -> float:
        """Take the GPU from one and give it to the other, with a death in between; returns the seconds."""
        assert self.up("resume", taker).status == 0
        began = time.monotonic()
        if kill == "the training":
            self.kill(str(self.root / giver), "consumer.py")
        elif kill == "its SideCar":
            self.kill(f"/{giver}", "sidecar")
        assert self.up("suspend", giver).status == 0
        if kill == "dljob up":
            self.up.process.kill()
            self.up.process.wait(240.0)
            self.up = Up(self.root, *self.options)
            self.up.ready()
        self.up.until_phase(taker, "Running")
        self.place.wait(self.place.holds, "one program on the GPU", 240.0)
        assert not self.find(str(self.root / giver), "consumer.py"), f"{giver} is still there"
        return time.monotonic() - began

    def find(self, *words: str) -> list[int]:
        """The processes of this contest with these words in their command lines."""
        commands = {
            pid: drivers.read_proc(pid, "cmdline").decode() for pid in find_processes(self.root)
        }
        return [pid for pid, command in commands.items() if all(word in command for word in words)]

    def kill(self, *words: str) -> None:
        for pid in self.find(*words):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def end(self) -> None:
        self.up.process.kill()
        self.up.process.wait(240.0)
        kill_all(self.root)


def show_handing_over(place: Place, times: int = TIMES) -> Figures:
    """The GPU has one master at every look, and both jobs get it each time."""
    contest = Contest(place)
    seconds: dict[str, list[float]] = {kill: [] for kill in KILLS}
    try:
        contest.begin()
        with Sampler(place.uuid, place.base_mib + 2 * PROGRAM_MIB - 256) as sampler:
            for round_ in range(times):
                giver, taker = ("ping", "pong") if round_ % 2 == 0 else ("pong", "ping")
                kill = KILLS[round_ // 2 % len(KILLS)]
                seconds[kill].append(contest.hand_over(giver, taker, kill))
    finally:
        contest.end()
    place.wait_free()
    assert sampler.samples, "nvidia-smi has told nothing"
    assert not sampler.crowded, f"two masters: {sampler.crowded} MiB in use"
    longest = {
        f"longest, killed: {kill}, s": round(max(each), 2) for kill, each in seconds.items() if each
    }
    return {
        "handed over": times,
        "looks of nvidia-smi": len(sampler.samples),
        "two masters": 0,
        **longest,
    }
