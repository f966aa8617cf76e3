"""The kernel reports the events of pods, so that no loop has to poll."""

import asyncio
import subprocess

import pytest

from dljob.local.pods.watching import PodWatch

LONGEST_SECONDS = 240.0


class Ear:
    """Hears hints, and lets a test wait for the next one."""

    def __init__(self) -> None:
        self.heard = 0
        self._news = asyncio.Event()

    def notify(self) -> None:
        self.heard += 1
        self._news.set()

    async def next(self) -> None:
        await self._news.wait()
        self._news.clear()


def live_through(story) -> None:
    async def told() -> None:
        ear = Ear()
        watch = PodWatch(ear.notify)
        try:
            await asyncio.wait_for(story(watch, ear), LONGEST_SECONDS)
        finally:
            watch.close()

    asyncio.run(told())


def test_sockets_that_appear_or_vanish_notify_and_other_files_do_not(tmp_path):
    async def story(watch: PodWatch, ear: Ear) -> None:
        watch.sockets(tmp_path)
        (tmp_path / "scratch").touch()
        await asyncio.sleep(0)
        assert ear.heard == 0
        # A report about the other file would have come before this one.
        (tmp_path / "pod.sock.lock").touch()
        await ear.next()
        assert ear.heard == 1
        (tmp_path / "new").touch()
        (tmp_path / "new").rename(tmp_path / "pod.sock")
        await ear.next()
        (tmp_path / "pod.sock").unlink()
        await ear.next()

    live_through(story)


@pytest.mark.story
@pytest.mark.processes
def test_the_end_of_watched_processes_alone_notifies():
    async def story(watch: PodWatch, ear: Ear) -> None:
        with (
            subprocess.Popen(["cat"], stdin=subprocess.PIPE) as watched,
            subprocess.Popen(["cat"], stdin=subprocess.PIPE) as other,
        ):
            watch.processes([watched.pid, other.pid])
            watch.processes([watched.pid])
            other.kill()
            other.wait(LONGEST_SECONDS)
            # One that is gone already is no error.
            watch.processes([watched.pid, other.pid])
            assert watched.stdin is not None
            watched.stdin.close()
            await ear.next()
            assert ear.heard == 1

    live_through(story)


def test_only_the_last_timer_notifies():
    async def story(watch: PodWatch, ear: Ear) -> None:
        watch.after(0.0)
        watch.after(None)
        watch.after(0.01)
        await ear.next()
        assert ear.heard == 1

    live_through(story)


def test_a_folder_that_cannot_be_watched_is_logged_once(tmp_path, caplog):
    async def story(watch: PodWatch, ear: Ear) -> None:
        watch.sockets(tmp_path / "missing")
        assert "seen a little later: No such file or directory" in caplog.text

    live_through(story)


def test_a_closed_watch_does_not_notify(tmp_path):
    async def story() -> None:
        ear = Ear()
        watch = PodWatch(ear.notify)
        watch.sockets(tmp_path)
        watch.after(0.0)
        for _ in range(2):
            watch.close()
        (tmp_path / "pod.sock").touch()
        await asyncio.sleep(0.01)
        assert ear.heard == 0

    asyncio.run(story())
