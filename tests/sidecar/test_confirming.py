"""Files and lines from before the request are no answer to it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from dlsidecar.checkpoints.checkpoint_files import Mark, await_next_stamp, stamp_ns
from dlsidecar.checkpoints.confirming import LONGEST_DELAY_SECONDS, FileWatch, Watch
from dlsidecar.observing.file_threads import Scout
from dlsidecar.settings import Complete, Confirmation, Saving

LIMIT_SECONDS = 240.0


class Asking:
    """One request, of which the test says what happens when it is sent."""

    def __init__(self, folder: Path, ask: Callable[[], int], *, doubt_seconds: float) -> None:
        self.confirmed: list[str] = []
        self._heard = asyncio.Event()
        self._scout = Scout("test")
        self.looks: asyncio.Queue[None] = asyncio.Queue()
        """Has an entry for each look that was judged."""
        self._files = FileWatch(
            Saving(confirm=Confirmation.FILE, complete=Complete.RENAME, path=str(folder)),
            Watch(
                members=self._list_members,
                scout=self._scout,
                on_confirmed=lambda unit, files: self.confirmed.append(unit),
            ),
            ready=ask,
            confirmed=self._hear,
        )
        self._files.doubt_seconds = doubt_seconds
        self._files.begin()

    def _list_members(self) -> tuple[int, ...]:
        self.looks.put_nowait(None)
        return (os.getpid(),)

    def _hear(self) -> None:
        self._heard.set()
        self._files.cancel()

    async def wait(self) -> list[str]:
        await asyncio.wait_for(self._heard.wait(), LIMIT_SECONDS)
        return self.confirmed


def save(folder: Path, name: str) -> None:
    part = folder / f"{name}.part"
    part.write_text(name)
    part.rename(folder / name)


def save_and_ask(folder: Path) -> int:
    save(folder, "unasked")
    return await_next_stamp()


def test_a_save_just_before_the_request_does_not_confirm_it(tmp_path):
    async def main() -> list[str]:
        asking = Asking(tmp_path, lambda: save_and_ask(tmp_path), doubt_seconds=LIMIT_SECONDS)
        # Only a look that finds something whole asks which files are open: none does so yet.
        await asking.looks.get()
        await asyncio.sleep(0)
        assert asking.confirmed == []
        save(tmp_path, "asked")
        return await asking.wait()

    assert asyncio.run(main()) == ["asked"]


def test_an_answer_at_once_confirms_it(tmp_path):
    def ask() -> int:
        since = await_next_stamp()
        save(tmp_path, "asked")
        return since

    async def main() -> list[str]:
        return await Asking(tmp_path, ask, doubt_seconds=LIMIT_SECONDS).wait()

    assert asyncio.run(main()) == ["asked"]


def test_an_answer_with_the_stamps_of_a_late_clock_counts_after_a_while(tmp_path):
    def ask() -> int:
        save(tmp_path, "asked")
        return stamp_ns() + 3600 * 10**9

    async def main() -> list[str]:
        return await Asking(tmp_path, ask, doubt_seconds=0.2).wait()

    assert asyncio.run(main()) == ["asked"]


class Clock:
    """The time of a loop, which passes when the test says so: real time passes while the machine stands still."""

    def __init__(self) -> None:
        self.now = 1000.0

    def read(self) -> float:
        return self.now


class LateScout:
    """A scout that looks when it is sent, and comes back when the test says so."""

    is_lost = False

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._out: list[Callable[[], None]] = []

    def send(self, look: Callable[[], Any], hear: Callable[[Any, float], None]) -> bool:
        loop = asyncio.get_running_loop()
        if self._out:
            return False
        found, began = look(), loop.time()
        self._out.append(lambda: hear(found, loop.time() - began))
        return True

    def come_back(self) -> None:
        self._out.pop()()

    async def wait_sent(self) -> None:
        while not self._out:
            self._clock.now += 0.001
            await asyncio.sleep(0)


def test_files_that_change_while_a_look_is_on_its_way_back_do_not_rest(tmp_path, monkeypatch):
    """Where the SideCar stalls between a look and its verdict, the files have had time to change."""
    rest_seconds = 0.1
    saving = Saving(
        confirm=Confirmation.FILE,
        complete=Complete.SETTLED,
        path=str(tmp_path),
        settle_seconds=rest_seconds,
    )
    file = tmp_path / "step-1"
    confirmed: list[int] = []

    def hear(_unit: str, files: Mapping[str, Mark]) -> None:
        confirmed.append(files[file.name].size)

    async def main() -> None:
        clock = Clock()
        monkeypatch.setattr(asyncio.get_running_loop(), "time", clock.read)
        scout: Any = LateScout(clock)
        watch = Watch(members=list, scout=scout, on_confirmed=hear)
        files = FileWatch(saving, watch, ready=await_next_stamp, confirmed=lambda: None)
        files.begin()
        scout.come_back()
        file.write_text("one part")
        await scout.wait_sent()
        scout.come_back()
        await scout.wait_sent()
        # The look that is out has seen one part only.
        file.write_text("one part and another one")
        clock.now += 2 * rest_seconds
        scout.come_back()
        while not confirmed:
            await scout.wait_sent()
            scout.come_back()
        files.cancel()

    asyncio.run(main())
    assert confirmed == [file.stat().st_size]


def test_a_pause_of_the_machine_between_two_looks_is_no_rest_of_the_files(tmp_path, monkeypatch):
    """The writer stood still as well, and goes on with the SideCar."""
    rest_seconds = 2 * LONGEST_DELAY_SECONDS
    saving = Saving(
        confirm=Confirmation.FILE,
        complete=Complete.SETTLED,
        path=str(tmp_path),
        settle_seconds=rest_seconds,
    )
    file = tmp_path / "step-1"
    confirmed: list[int] = []

    def hear(_unit: str, files: Mapping[str, Mark]) -> None:
        confirmed.append(files[file.name].size)

    async def main() -> None:
        clock = Clock()
        monkeypatch.setattr(asyncio.get_running_loop(), "time", clock.read)
        scout: Any = LateScout(clock)
        watch = Watch(members=list, scout=scout, on_confirmed=hear)
        files = FileWatch(saving, watch, ready=await_next_stamp, confirmed=lambda: None)
        files.begin()
        scout.come_back()
        file.write_text("one part")
        await scout.wait_sent()
        scout.come_back()
        # Nothing runs meanwhile.
        clock.now += 2 * rest_seconds
        await scout.wait_sent()
        scout.come_back()
        file.write_text("one part and another one")
        while not confirmed:
            await scout.wait_sent()
            scout.come_back()
        files.cancel()

    asyncio.run(main())
    assert confirmed == [file.stat().st_size]


def test_stamps_tell_what_changes_before_a_tick_from_what_changes_after_it(tmp_path):
    told = 0
    for number in range(50):
        before, after = tmp_path / f"before-{number}", tmp_path / f"after-{number}"
        before.touch()
        tick = await_next_stamp()
        after.touch()
        told += before.stat().st_ctime_ns < tick <= after.stat().st_ctime_ns
    # Where the host stops the machine for a while, the kernel and its clock may be a tick apart.
    assert told > 40
