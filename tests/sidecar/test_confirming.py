"""Only files and lines after a request confirm it."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dljob_sidecar.behaviour.events import CheckpointDone
from dljob_sidecar.checkpoints import checkpoint_files, requests
from dljob_sidecar.checkpoints.checkpoint_files import Mark, await_next_stamp
from dljob_sidecar.checkpoints.confirming import LONGEST_DELAY_SECONDS, FileWatch, Watch
from dljob_sidecar.checkpoints.requests import LastOutput, Recipients, Request
from dljob_sidecar.linux.spawning import Ended, Reaper
from dljob_sidecar.observing.file_threads import FileThread
from dljob_sidecar.processes.supervising import CheckpointRequests, Processes
from dljob_wire.checkpoints import Checkpoint, Complete, Confirmation
from tests.sidecar.clients import live_through

LIMIT_SECONDS = 240.0


class Asking:
    """One request; the test decides the effect of sending it."""

    def __init__(
        self, folder: Path, ask: Callable[[], int | None], *, doubt_seconds: float
    ) -> None:
        self.confirmed: list[str] = []
        self._heard = asyncio.Event()
        self._file_thread = FileThread("test")
        self.looks: asyncio.Queue[None] = asyncio.Queue()
        """An entry for each judged look."""
        self._files = FileWatch(
            Checkpoint(confirm=Confirmation.FILE, complete=Complete.RENAME, path=str(folder)),
            Watch(
                members=self._list_members,
                file_thread=self._file_thread,
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


def test_save_before_the_request_does_not_confirm(tmp_path):
    async def main() -> list[str]:
        asking = Asking(tmp_path, lambda: save_and_ask(tmp_path), doubt_seconds=LIMIT_SECONDS)
        # Only a look that finds something whole asks which files are open: none does so yet.
        await asking.looks.get()
        await asyncio.sleep(0)
        assert asking.confirmed == []
        save(tmp_path, "asked")
        return await asking.wait()

    assert live_through(main()) == ["asked"]


@pytest.mark.parametrize("is_late", [False, True])
def test_immediate_answer_confirms_despite_a_late_clock(tmp_path, is_late):
    def ask() -> int:
        since: int = await_next_stamp() + is_late * 3600 * 10**9
        save(tmp_path, "asked")
        return since

    async def main() -> list[str]:
        doubt_seconds = 0.2 if is_late else LIMIT_SECONDS
        return await Asking(tmp_path, ask, doubt_seconds=doubt_seconds).wait()

    assert live_through(main()) == ["asked"]


def test_save_before_the_first_ask_does_not_confirm(tmp_path):
    calls: list[None] = []

    def ask() -> int | None:
        calls.append(None)
        if len(calls) < 3:
            save(tmp_path, f"unasked-{len(calls)}")
            return None
        since: int = await_next_stamp()
        save(tmp_path, "asked")
        return since

    async def main() -> list[str]:
        return await Asking(tmp_path, ask, doubt_seconds=LIMIT_SECONDS).wait()

    assert live_through(main()) == ["asked"]


class Clock:
    """The time of a loop, which passes only when the test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def read(self) -> float:
        return self.now


class LateFileThread:
    """A file thread that looks at once, and answers when the test says so."""

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


@pytest.mark.parametrize("rest_seconds", [0.1, 2 * LONGEST_DELAY_SECONDS])
def test_files_that_change_after_a_stall_are_not_settled(tmp_path, monkeypatch, rest_seconds):
    """The SideCar stalls during a look or between two looks, and a writer stalls with it."""
    saving = Checkpoint(
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
        file_thread: Any = LateFileThread(clock)
        watch = Watch(members=list, file_thread=file_thread, on_confirmed=hear)
        files = FileWatch(saving, watch, ready=await_next_stamp, confirmed=lambda: None)
        files.begin()
        file_thread.come_back()
        file.write_text("one part")
        await file_thread.wait_sent()
        file_thread.come_back()
        if rest_seconds < LONGEST_DELAY_SECONDS:
            await file_thread.wait_sent()
            # The look that is out has seen one part only.
            file.write_text("one part and another one")
            clock.now += 2 * rest_seconds
            file_thread.come_back()
        else:
            clock.now += 2 * rest_seconds
            await file_thread.wait_sent()
            file_thread.come_back()
            file.write_text("one part and another one")
        while not confirmed:
            await file_thread.wait_sent()
            file_thread.come_back()
        files.cancel()

    live_through(main())
    assert confirmed == [file.stat().st_size]


def test_hooks_of_all_ranks_are_called_at_once(tmp_path):
    """Each hook answers only after the last was called, like one that gathers a checkpoint."""
    count = 8
    reported: list[str] = []

    async def story() -> None:
        loop = asyncio.get_running_loop()
        called, end = [], loop.create_future()

        async def hook(reader, writer):
            await reader.readuntil(b"\r\n\r\n")
            called.append(writer)
            if len(called) == count:
                (tmp_path / "latest").write_text("saved")
                for one in called:
                    one.write(b"HTTP/1.1 204 No Content\r\n\r\n")
                    one.close()

        servers = [await asyncio.start_server(hook, "127.0.0.1", 0) for _ in range(count)]
        ports = sorted(server.sockets[0].getsockname()[1] for server in servers)
        ranks = [SimpleNamespace(pid=0, local_rank=port - ports[0], ended=None) for port in ports]
        saving = Checkpoint(
            http=f"{ports[0]}/save",
            to="all",
            confirm=Confirmation.FILE,
            complete=Complete.RENAME,
            path=str(tmp_path),
        )
        Request(
            saving,
            ranks,
            environment={},
            outputs=(1, 2),
            reaper=Reaper(),
            watch=Watch(list, file_thread := FileThread("test")),
            output=LastOutput(),
            report=end.set_result,
        )
        reported.append(await asyncio.wait_for(end, LIMIT_SECONDS))
        file_thread.close()
        for server in servers:
            server.close()

    live_through(story())
    assert reported == [""]


class SlowFileThread:
    """A file thread that looks and answers when the test says so."""

    def __init__(self):
        self.out = []
        self.is_lost = False

    def send(self, look, hear):
        self.out.append((look, hear))
        return True

    def come_back(self):
        look, hear = self.out.pop(0)
        hear(look(), 0.0)


def take_it_themselves(pid, _signum, *, to_all):
    return Recipients((pid,))


@pytest.mark.parametrize("count", [1, 2])
def test_rank_that_ended_is_not_signalled(monkeypatch, tmp_path, count):
    """Its id may belong to another process by then."""
    asked: list[int] = []
    monkeypatch.setattr(requests, "send", lambda pid, signum: asked.append(pid))
    monkeypatch.setattr(requests, "find_recipients", take_it_themselves)
    reported: list[str] = []

    async def story() -> None:
        file_thread: Any = SlowFileThread()
        ranks = [SimpleNamespace(pid=one, local_rank=one, ended=None) for one in range(count)]
        saving = Checkpoint(
            signal="SIGUSR1", to="all", confirm=Confirmation.FILE, path=str(tmp_path)
        )
        request = Request(
            saving,
            ranks,
            environment={},
            outputs=(1, 2),
            reaper=Reaper(),
            watch=Watch(list, file_thread),
            output=LastOutput(),
            report=reported.append,
        )
        ranks[0].ended = Ended(0, None)
        request.hear_end()
        assert request.is_settling == (count == 1)
        while file_thread.out:
            file_thread.come_back()
        await asyncio.sleep(0)
        request.cancel()

    live_through(story())
    assert asked == list(range(1, count))
    assert [reason.partition(":")[0] for reason in reported] == [requests.UNCONFIRMED] * (
        count == 1
    )


def test_kill_does_not_abandon_a_copy_to_disk(monkeypatch, tmp_path):
    """The processes have ended, and the copy takes longer than the grace and a last look."""
    monkeypatch.setattr(requests, "send", lambda *_: None)
    monkeypatch.setattr(requests, "find_recipients", take_it_themselves)
    monkeypatch.setattr(Request, "settling_seconds", 0.0)
    saving = Checkpoint(
        signal="SIGUSR1", confirm=Confirmation.FILE, complete=Complete.RENAME, path=str(tmp_path)
    )
    reported: list[Any] = []
    copies: list[Any] = []

    async def story() -> None:
        file_thread: Any = SlowFileThread()
        rank = SimpleNamespace(pid=1, local_rank=0, ended=None)
        watch = Watch(list, file_thread, secure=lambda _unit, _files, hear: copies.append(hear))
        store: Any = SimpleNamespace(saving=saving, make_watch=lambda _: watch)
        environment = SimpleNamespace(given={}, of=lambda _: {})
        starter: Any = SimpleNamespace(attempt=1, members=[rank], environment=environment)
        outputs: Any = SimpleNamespace(common=(1, 2))
        asked = CheckpointRequests(
            store,
            starter,
            outputs=outputs,
            reaper=Reaper(),
            report=reported.append,
            list_members=list,
        )
        asked.ask(is_trial=False, is_blamed=True, output=LastOutput())
        file_thread.come_back()
        (tmp_path / "latest").write_text("saved")
        rank.ended = Ended(0, None)
        asked.hear_end()
        while not copies:
            file_thread.come_back()
        processes: Any = object.__new__(Processes)
        processes._requests, processes._starter = asked, starter
        processes._proof = SimpleNamespace(kill=lambda: None)
        processes._live = SimpleNamespace(cancel=lambda: None)
        processes.kill()
        for _ in range(5):
            await asyncio.sleep(0)
        assert reported == []
        copies[0]("")
        for _ in range(5):
            await asyncio.sleep(0)

    live_through(story())
    assert reported == [CheckpointDone(1)]


def test_unreadable_file_is_skipped(monkeypatch, tmp_path):
    # As on a network file system that has lost it: the kernel tells no kind with the name.
    class Stale:
        name = "stale"

        def is_dir(self, *, follow_symlinks=True):
            raise OSError(errno.ESTALE, "Stale file handle")

        stat = is_dir

    (tmp_path / "latest").write_text("saved")
    whole = checkpoint_files.list_folder
    monkeypatch.setattr(checkpoint_files, "list_folder", lambda path: [Stale(), *whole(path)])
    assert list(checkpoint_files.take_snapshot(str(tmp_path)).files) == ["latest"]
