"""
Which functions of the product run from the submission of a job until the job is Running.

``python -m tests.submissions`` prints the counts, ``scripts/measure-house`` shows them, and tests/project/house.yaml has
their limits. A function is a code object of a file in ``operator/`` or ``sidecar/``, by its file and qualified name:
functions, methods, lambdas and comprehensions count once each, and methods that a dataclass generates do not. A fresh
interpreter counts most, because no cache answers in place of a function.
"""

import asyncio
import json
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import aiohttp
import pytest

from dljob.control.scheduling import Options
from dljob.control.sidecars.dialing import Line
from dljob.core import policies
from dljob.core.model import JobId, Node, Phase
from dljob.local.running import Running
from dljob.local.setup import Setup
from tests.control.governing import governed, has_begun, submit
from tests.control.training import Trainings
from tests.local.stages import job_document

ROOT = Path(__file__).parents[1]
PRODUCT = (f"{ROOT}/operator/", f"{ROOT}/sidecar/")
LATE_S = 0.3
"""How long each request to the SideCar is on its way."""
PERIOD_S = 6.0
"""Longer than the longest period (5 s) of the parts of a server that look at a job which is Running."""


class Passed:
    """The functions that were called, in all threads that began under :func:`profiled`."""

    def __init__(self) -> None:
        self.codes: set[CodeType] = set()

    def note(self, frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            self.codes.add(frame.f_code)

    def counts(self) -> tuple[int, int]:
        """Return the number of functions and the number of files."""
        ours = {
            (each.co_filename, each.co_qualname)
            for each in self.codes.copy()
            if each.co_filename.startswith(PRODUCT)
        }
        return len(ours), len({file for file, _ in ours})


@contextmanager
def profiled() -> Iterator[Passed]:
    passed = Passed()
    threading.setprofile(passed.note)
    sys.setprofile(passed.note)
    try:
        yield passed
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


def count_in_played_world() -> tuple[int, int]:
    """Count in a world of ``tests/control`` whose controller has nothing else to do."""
    with governed() as government:
        government.begin()
        Trainings(government.world).begin()
        government.world.run(30.0)
        with profiled() as passed:
            job = submit(government, "first")
            government.world.run(200.0, until=lambda: has_begun(government, job))
        assert has_begun(government, job)
    return passed.counts()


def count_on_one_machine(state: Path) -> tuple[int, int]:
    """
    Count in the server of ``dljob up``, its start included, with a real SideCar and training.

    Requests to the SideCar are slow, and the controller wakes all the time. So the SideCar always listens before it is
    dialed, and the controller observes each state on the way. A last pause lets each periodic part of the server run.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Line, "_ask", _ask_late)
        return asyncio.run(_submit(state))


async def _ask_late(line: Line, *args: Any, now: Any = Line._ask, **rest: Any) -> Any:
    await asyncio.sleep(LATE_S)
    return await now(line, *args, **rest)


async def _submit(state: Path) -> tuple[int, int]:
    options = Options(policy=policies.make("adaptive"))
    nodes = (Node.of("n1", 4),)
    with profiled() as passed:
        running = Running(
            Setup(state=state, nodes=lambda: nodes, virtual_gpus=True, options=options)
        )
        task = asyncio.create_task(running.run(hears_signals=False))
        try:
            while running.controller.scene is None:
                await asyncio.sleep(0.01)
            socket = aiohttp.UnixConnector(path=str(running.folders.socket))
            async with (
                aiohttp.ClientSession("http://localhost", connector=socket) as session,
                session.post("/v1/jobs", json=job_document("first")) as answer,
            ):
                assert answer.status == 201, await answer.text()
            while running.registry.entries[JobId("first")].status.phase is not Phase.RUNNING:
                assert not task.done()
                running.controller.wake(urgent=True)
                await asyncio.sleep(0.01)
            await asyncio.sleep(PERIOD_S)
            return passed.counts()
        finally:
            sys.setprofile(None)
            task.cancel()
            await asyncio.wait({task})
            await running.clear()
            await running.close()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="dlt-") as folder:
        counts = [*count_in_played_world(), *count_on_one_machine(Path(folder, "state"))]
    sys.stdout.write(json.dumps(counts))
