"""
A SideCar without an agent: the supervisor and the facts, driven by lines of JSON.

It is its own process, because a supervisor adopts the children of its process. It reads calls such as
``{"call": "start", "attempt": 1, …}`` and writes a line for each event and answer. With a last argument
``namespace`` or ``tree`` the keeper runs it, with or without a namespace.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from dljob_sidecar.assembling import Assembly
from dljob_sidecar.behaviour.events import Gone
from dljob_sidecar.observing.gpus.gpu_thread import GpuThread
from dljob_sidecar.observing.gpus.nvml import NoGpuReader
from dljob_sidecar.observing.tailing import FollowedFile
from dljob_sidecar.processes import keeper, supervising
from dljob_sidecar.settings import Settings
from dljob_sidecar.warm.warming import SparePool
from dljob_wire.kinds import camel
from dljob_wire.messages import Peer, Run
from dljob_wire.training import read_training

LIMIT_SECONDS = 240.0
PARTS = {"progressLog": "log", "progressFile": "file", "stallSeconds": "stallSeconds"}


def build_settings(document: dict[str, Any]) -> Settings:
    command = tuple(document.pop("command"))
    slow_down(document.pop("look_seconds", 0.0))
    fields = _in_camel({"poll_seconds": 0.2, "expects_gpus": False, **document})
    fields["checkpoint"] = _in_camel(fields.get("checkpoint", {}))
    fields["progress"] = {part: fields.pop(name) for name, part in PARTS.items() if name in fields}
    return Settings(replace(read_training(json.dumps(fields)), command=command))


def _in_camel(fields: dict[str, Any]) -> dict[str, Any]:
    return {camel(name): value for name, value in fields.items()}


def slow_down(seconds: float) -> None:
    """Let each look at a file take ``seconds``, as on a distant file server."""
    follow = FollowedFile._follow

    def follow_slowly(self: FollowedFile) -> bool:
        time.sleep(seconds)
        return follow(self)

    FollowedFile._follow = follow_slowly  # type: ignore[method-assign]


def build_run(gpus: list[str], processes: int, port: int, rank: int = 0) -> Run:
    """Return a run whose first process has this rank; the earlier ranks are in another container."""
    others = (Peer("127.0.0.1", rank),) if rank else ()
    return Run(
        epoch=1,
        generation=1,
        incarnation="x",
        gpus=tuple(gpus),
        rank_offset=rank,
        world_size=rank + processes,
        peers=(*others, Peer("127.0.0.1", processes)),
        rendezvous_port=port,
    )


class Harness:
    def __init__(self, settings: Settings, mark: str, channel: int) -> None:
        self.channel = channel
        self.done = asyncio.Event()
        self.is_interrupted = False
        self.assembly = Assembly(
            settings,
            report=self.report,
            changed=lambda: self.write("Changed"),
            environment=dict(os.environ),
            mark=mark,
            gpu_thread=GpuThread(lambda: NoGpuReader("not in this test")),
        )

    def write(self, name: str, **what: Any) -> None:
        line = json.dumps({"event": name, **what}, default=str)
        os.write(self.channel, line.encode() + b"\n")

    def report(self, event: Any) -> None:
        if self.is_interrupted and isinstance(event, Gone):
            self.done.set()
        self.write(type(event).__name__, **dataclasses.asdict(event))

    def interrupt(self) -> None:
        """Stop everything on SIGTERM, as the machine would decide."""
        self.is_interrupted = True
        self.assembly.supervisor.kill()

    def take(self, message: dict[str, Any]) -> None:
        call = message["call"]
        supervisor = self.assembly.supervisor
        if call == "start":
            rank = message.get("rank", 0)
            run = build_run(message["gpus"], message["processes"], message["port"], rank)
            supervisor.start(run, message["attempt"])
        elif call == "prepare":
            supervisor.prepare(message["processes"])
        elif call == "facts":
            self.write("Facts", **self.facts())
        elif call == "leave":
            self.done.set()
        else:
            getattr(supervisor, call)()

    def facts(self) -> dict[str, Any]:
        names = ("progress", "warmth")
        single = {name: dataclasses.asdict(getattr(self.assembly, name)()) for name in names}
        several = {
            name: [dataclasses.asdict(one) for one in getattr(self.assembly, name)()]
            for name in ("processes", "problems", "gpus")
        }
        return {**single, **several, "descriptors": sum(1 for _ in Path("/proc/self/fd").iterdir())}

    async def run(self, source: int) -> None:
        loop = asyncio.get_running_loop()
        self.assembly.begin()
        unread = b""

        def read() -> None:
            nonlocal unread
            data = os.read(source, 65536)
            if not data:
                self.done.set()
                loop.remove_reader(source)
            *lines, unread = (unread + data).split(b"\n")
            for line in lines:
                self.take(json.loads(line))

        loop.add_reader(source, read)
        loop.add_signal_handler(signal.SIGTERM, self.interrupt)
        keeper.unblock_signals()
        self.write("Ready", pid=os.getpid())
        await self.done.wait()
        loop.remove_reader(source)
        self.assembly.close()
        await asyncio.sleep(0)
        self.write("Left")


def main() -> int:
    document, mark, channel, keep = sys.argv[1:]
    # A stalled machine must not cost a spare or the helper that reads lines.
    SparePool.answer_seconds = supervising.LAST_LINES_SECONDS = LIMIT_SECONDS

    def work() -> int:
        async def body() -> None:
            settings = build_settings(json.loads(document))
            await Harness(settings, mark, int(channel)).run(0)

        asyncio.run(body())
        return 0

    return keeper.keep(work, isolate=keep == "namespace") if keep else work()


if __name__ == "__main__":
    sys.exit(main())
