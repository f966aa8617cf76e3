"""Coroutines that live together end together, without losing a cancellation."""

import asyncio
import subprocess
import sys

import pytest

from dljob.kube.programs import together
from tests.loops import on_loop


async def for_ever() -> None:
    await asyncio.Event().wait()


def test_first_error_ends_all_coroutines():
    ended = []

    async def fail() -> None:
        raise ValueError("broken")

    async def end_slowly() -> None:
        try:
            await for_ever()
        finally:
            await asyncio.sleep(0)
            ended.append(True)

    async def story() -> None:
        with pytest.raises(ValueError, match="broken"):
            await together(end_slowly(), fail())

    asyncio.run(asyncio.wait_for(story(), 240.0))
    assert ended == [True]


@on_loop
async def test_cancellation_during_the_end_wins_over_the_error():
    ending, may_end = asyncio.Event(), asyncio.Event()

    async def fail() -> None:
        await asyncio.sleep(0)
        raise ValueError("broken")

    async def end_late() -> None:
        try:
            await for_ever()
        finally:
            ending.set()
            await may_end.wait()

    task = asyncio.create_task(together(end_late(), fail()))
    await ending.wait()
    task.cancel()
    await asyncio.sleep(0)
    may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.processes
@pytest.mark.parametrize(
    ("act", "said"),
    [
        ("os.kill(os.getpid(), signal.SIGUSR1)", "Current thread"),
        ("os.abort()", "Fatal Python error: Aborted"),
    ],
)
def test_signal_and_crash_add_stacks_to_the_log(act: str, said: str):
    program = (
        f"import os, signal; from dljob.kube.programs import log_to_stderr; log_to_stderr(); {act}"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], stderr=subprocess.PIPE, text=True, check=False
    )
    assert said in ended.stderr
    assert "line 1 in <module>" in ended.stderr
