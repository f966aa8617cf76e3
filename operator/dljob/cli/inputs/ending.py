"""Runs an activity that starts processes, and ends it in order at the first signal."""

import asyncio
import signal
from collections.abc import Coroutine
from typing import Any, TypeVar

import click

from dljob.cli.output.messages import say

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

T = TypeVar("T")


def run_to_the_end(activity: Coroutine[Any, Any, T]) -> T:
    """
    Run this to its end, or until a signal asks to end; raises :class:`click.Abort` then.

    A second signal changes nothing, so that the verb always tidies up.
    """
    return asyncio.run(_run(activity))


async def _run(activity: Coroutine[Any, Any, T]) -> T:
    task = asyncio.ensure_future(activity)
    loop = asyncio.get_running_loop()
    # These take the place of the handler of asyncio.run, by which a second
    # Ctrl-C raises KeyboardInterrupt in the middle of the tidying up.
    for signum in SIGNALS:
        loop.add_signal_handler(signum, _interrupt, task)
    try:
        return await task
    except asyncio.CancelledError:
        raise click.Abort from None


def _interrupt(task: "asyncio.Future[Any]") -> None:
    # `cancelling` counts requests; a second one would reach the `finally` of the activity.
    if isinstance(task, asyncio.Task) and not task.cancelling():
        say("ends the processes that it has started …")
        task.cancel()
