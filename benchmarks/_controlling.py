"""A controller of this machine for the benchmarks, as ``dljob up`` has it, with real SideCars."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import click
from _progress import attempts

from dljob.local.running import Running
from dljob.local.setup import Setup

OPEN_EVERY_S = 0.01
LOOK_EVERY_S = 1.0
"""The longest time between two checks of a condition that a benchmark waits for; each written record causes one too."""


@asynccontextmanager
async def controlling(setup: Setup) -> AsyncIterator[Running]:
    """Control, and leave nothing running in the end."""
    running = Running(setup)
    control = asyncio.create_task(running.run(hears_signals=False))
    control.add_done_callback(_tell_of_end)
    try:
        for _ in attempts("the controller listens"):
            if running.folders.socket.exists() or control.done():
                break
            await asyncio.sleep(OPEN_EVERY_S)
        yield running
    finally:
        control.cancel()
        await asyncio.wait({control})
        await running.clear()
        await running.close()
        running.folders.remove()


def _tell_of_end(control: "asyncio.Task[None]") -> None:
    if not control.cancelled() and control.exception() is not None:
        click.echo(f"the controller has ended: {control.exception()}", err=True)


async def until(
    running: Running, happened: Callable[[], bool], what: str, patience_s: float
) -> None:
    """Return when this has happened; raises TimeoutError that says what did not."""
    changes = running.registry.changes
    for _ in attempts(what, patience_s):
        if happened():
            return
        await changes.wait(changes.version, LOOK_EVERY_S)
