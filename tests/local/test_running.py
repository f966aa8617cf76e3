"""How the parts of a dljob up end, in one process and with a driver that the test controls."""

import asyncio
from contextlib import asynccontextmanager

import pytest

from dljob.control.scheduling import Options
from dljob.core import policies
from dljob.local.gpus.devices import RealGpus
from dljob.local.running import Running
from dljob.local.setup import Setup
from tests.local.gpus import ToldDriver, devices
from tests.loops import after_turns

LONGEST_S = 240.0
"""No law of ours: after this time something hangs."""


@asynccontextmanager
async def on_gpus(root):
    there = devices(1, root)
    gpus = RealGpus(ToldDriver(there), there, name="box", look_seconds=0.01)
    running = Running(
        Setup(
            state=root / "state",
            nodes=gpus.nodes,
            virtual_gpus=False,
            real_gpus=gpus,
            options=Options(policy=policies.make("adaptive")),
        )
    )
    try:
        yield running, gpus
    finally:
        await running.close()


@pytest.mark.parametrize("turns", range(4))
def test_a_server_that_is_ended_when_it_first_knows_its_gpus_ends(root, turns):
    async def story():
        async with on_gpus(root) as (running, gpus):
            task = asyncio.create_task(running.run(hears_signals=False))
            await asyncio.sleep(0)
            know = gpus.known.set

            def know_and_end():
                if not gpus.known.is_set():
                    after_turns(turns, task.cancel)
                know()

            gpus.known.set = know_and_end
            await asyncio.wait({task}, timeout=LONGEST_S)
            return task.cancelled()

    assert asyncio.run(story())


@pytest.mark.parametrize(
    "part", ["dljob.local.running.report_steps", "dljob.local.gpus.devices.RealGpus.watch"]
)
def test_a_server_ends_with_the_error_of_a_part_that_dies(root, monkeypatch, part):
    async def fail(*_, **__):
        await asyncio.sleep(0)
        raise RuntimeError(part)

    monkeypatch.setattr(part, fail)

    async def story():
        async with on_gpus(root) as (running, _), asyncio.timeout(LONGEST_S):
            await running.run(hears_signals=False)

    with pytest.raises(RuntimeError, match=part):
        asyncio.run(story())
