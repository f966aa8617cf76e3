"""Pods as processes: when they are said to be up, and to have ended."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dljob.control.situation.ports import Entry, Pod, PodKey, PodPhase
from dljob.control.situation.status import Booking, Status
from dljob.core.documents import jobfile
from dljob.core.model import JobId, NodeName, Placement
from dljob.local.files import bounded_checks
from dljob.local.files.bounded_checks import NoAnswerError
from dljob.local.folders import Folders
from dljob.local.pods.launching import LaunchCommands
from dljob.local.pods.pod_folders import BookedPod
from dljob.local.pods.pod_states import PodTimes
from dljob.local.pods.processes import Pods
from dljob.local.pods.watching import PodWatch
from dljob.local.state_folder import make_folders, make_sockets
from tests.local.stages import job_document

LONGEST_SECONDS = 240.0
NODE = NodeName("node-0")
KEY = PodKey(JobId("job"), NODE)
BOOKING = Booking(NODE, 1)


def make_entry() -> Entry:
    trainer = {"name": "trainer", "image": "none", "command": [sys.executable, "-c", ""]}
    document = job_document(
        KEY.job, gpus={"options": [2]}, template={"spec": {"containers": [trainer]}}
    )
    job = jobfile.parse(document, require_template=True)
    placement = Placement.of({NODE: (0, 1)}, "")
    return Entry(job, 0, Status(placement=placement, pods=(BOOKING,)), document)


class Place:
    """One pod, looked at whenever the watch says so."""

    def __init__(self, folder: Path, times: PodTimes) -> None:
        self._news = asyncio.Event()
        self.folders = Folders(folder)
        make_folders(self.folders)
        make_sockets(self.folders)
        self.watch = PodWatch(self._news.set)
        self.watch.sockets(self.folders.sockets)
        self.pods = Pods(
            self.folders,
            LaunchCommands(self.folders, virtual_gpus=True),
            watch=self.watch,
            times=times,
        )
        self.entry = make_entry()

    def look(self) -> Pod:
        return self.pods.read([self.entry])[KEY]

    async def until(self, phase: PodPhase) -> float:
        """Read the pod at each notification until it is in a phase; returns the time."""
        while self.look().phase is not phase:
            await self.news()
        return time.monotonic()

    async def news(self) -> None:
        await self._news.wait()
        self._news.clear()

    def signal(self, signum: int) -> None:
        pid = (self.folders.pod(KEY, BOOKING.serial) / "pid").read_text().split()[0]
        os.kill(int(pid), signum)


@contextmanager
def place(folder: Path, times: PodTimes) -> Iterator[Place]:
    there = Place(folder, times)
    try:
        yield there
    finally:
        there.pods.kill(there.entry, BOOKING)
        for child in there.pods._processes._children.values():
            child.wait(LONGEST_SECONDS)
        there.watch.close()


def live_through(story: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(story(), LONGEST_SECONDS))


@pytest.fixture
def gate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file without which no SideCar begins, so that a test that stands still is not too late to look."""
    gate, python = tmp_path / "gate", tmp_path / "python"
    wait = f'until test -e "{gate}"; do sleep 0.02; done; exec "{sys.executable}" "$@"'
    python.write_text(f"#!/bin/sh\n{wait}\n")
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    return gate


@pytest.fixture
def away(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A folder whose file system does not answer."""
    answers, exists, isdir = threading.Event(), os.path.exists, os.path.isdir

    def hang(path: object, look: Callable[[Any], bool]) -> bool:
        if str(path).startswith("/away"):
            assert answers.wait(LONGEST_SECONDS)
        return look(path)

    monkeypatch.setattr(os.path, "exists", lambda path: hang(path, exists))
    monkeypatch.setattr(os.path, "isdir", lambda path: hang(path, isdir))
    monkeypatch.setattr(bounded_checks, "WAIT_S", 0.01)
    yield "/away"
    answers.set()


def test_a_pod_whose_files_hang_is_not_started_and_keeps_no_other_waiting(tmp_path, away):
    async def story() -> None:
        with place(tmp_path, PodTimes()) as there:
            entry = there.entry
            annotations = {"dljob.io/working-directory": away}
            document = {**entry.document, "metadata": {"name": "job", "annotations": annotations}}
            in_folder = replace(entry, document=document)
            interpreted = replace(entry, job=replace(entry.job, python=f"{away}/bin/python"))
            for each in (interpreted, in_folder):
                with pytest.raises(NoAnswerError, match="its file system does not answer"):
                    there.pods.launch(each, BOOKING)
            assert there.look().phase is PodPhase.PENDING
            pod = BookedPod(there.folders, KEY.job, BOOKING)
            assert not pod.was_launched
            # Its SideCar has died, and is to be started again.
            pod.folder.note_launch(0.0)
            pod.socket.touch()
            for each in (interpreted, in_folder):
                there.entry = each
                seen = there.look()
                assert (seen.phase, seen.reason) == (PodPhase.PENDING, "CannotStart")
                assert "its file system does not answer" in seen.message

    live_through(story)


@pytest.mark.processes
def test_a_pod_takes_no_less_time_than_it_shall(tmp_path):
    times = PodTimes(start=0.2, start_per_gpu=0.7, end=1.5)

    async def story() -> None:
        with place(tmp_path, times) as there:
            began = time.monotonic()
            there.pods.launch(there.entry, BOOKING)
            is_up = await there.until(PodPhase.UP)
            assert is_up - began >= times.start + 2 * times.start_per_gpu
            there.signal(signal.SIGTERM)
            told = time.monotonic()
            has_ended = await there.until(PodPhase.ENDED)
            assert has_ended - told >= times.end

    live_through(story)


@pytest.mark.story
@pytest.mark.processes
def test_the_next_controller_knows_a_pod_before_its_first_answer(tmp_path, gate):
    async def story() -> None:
        with place(tmp_path, PodTimes()) as killed, place(tmp_path, PodTimes()) as successor:
            killed.pods.launch(killed.entry, BOOKING)
            # Killed after it had started the SideCar, and before it could write down which.
            (killed.folders.pod(KEY, BOOKING.serial) / "pid").unlink()
            first = successor.look()
            assert (first.phase, first.reason) == (PodPhase.PENDING, "")
            gate.touch()
            await successor.until(PodPhase.UP)

            # A process that no file names can be ended all the same. If it had come so far as to
            # answer, it is started again, for the proof.
            successor.pods.kill(successor.entry, BOOKING)
            while (pod := successor.look()).phase is PodPhase.UP:
                await successor.news()
            assert pod.phase is PodPhase.ENDED or pod.reason == "Restarting"

    live_through(story)


@pytest.mark.processes
def test_a_pod_whose_folder_is_gone_says_so_and_ends_with_its_job(tmp_path):
    async def story() -> None:
        with place(tmp_path / "state", PodTimes()) as there:
            folder = tmp_path / "work"
            folder.mkdir()
            trainer = {**there.entry.job.template["spec"]["containers"][0]}
            trainer["workingDir"] = str(folder)
            template = {"spec": {"containers": [trainer]}}
            there.entry = replace(there.entry, job=replace(there.entry.job, template=template))
            there.pods.launch(there.entry, BOOKING)
            await there.until(PodPhase.UP)
            # Before its socket exists the SideCar can receive no command, so a killed one has
            # ended.
            socket = there.pods._folders.pod_socket(KEY, BOOKING.serial)
            while not socket.exists():
                await asyncio.sleep(0.01)
            folder.rmdir()
            there.signal(signal.SIGKILL)
            while (pod := there.look()).phase is PodPhase.UP:
                await there.news()
            assert (pod.phase, pod.reason) == (PodPhase.PENDING, "CannotStart")
            assert str(folder) in pod.message
            # A job that will never train again needs no folder to prove that no process of it is
            # left.
            there.entry = replace(there.entry, cancelled=True)
            await there.until(PodPhase.UP)
            # How often it died is remembered for as long as it is booked, and no longer.
            assert list(there.pods._states._deaths) == [(KEY, BOOKING.serial)]
            there.pods.read([])
            assert not there.pods._states._deaths

    live_through(story)


@pytest.mark.story
@pytest.mark.processes
def test_nothing_is_left_of_a_job_that_is_forgotten(tmp_path, gate):
    async def story() -> None:
        with place(tmp_path, PodTimes()) as there:
            gate.touch()
            there.pods.launch(there.entry, BOOKING)
            await there.until(PodPhase.UP)
            there.signal(signal.SIGTERM)
            await there.until(PodPhase.ENDED)
            there.pods.forget(KEY.job)
            assert not there.folders.job(KEY.job).exists()
            assert [*there.folders.sockets.iterdir()] == []
            # The first pod of a namesake has the same number, and has never been up.
            gate.unlink()
            there.pods.launch(there.entry, BOOKING)
            assert there.look().phase is PodPhase.PENDING
            gate.touch()
            await there.until(PodPhase.UP)

    live_through(story)


def test_a_pod_that_was_booked_and_never_launched_ends_when_it_is_removed(tmp_path):
    """The controller that booked it died before; no controller will launch it any more."""

    async def story() -> None:
        with place(tmp_path, PodTimes()) as there:
            assert there.look().phase is PodPhase.PENDING
            there.pods.kill(there.entry, BOOKING)
            assert there.look().phase is PodPhase.ENDED
            there.pods.launch(there.entry, BOOKING)
            assert there.look().phase is PodPhase.ENDED
            assert not there.pods._processes._children
            there.pods.forget(KEY.job)

    live_through(story)


def test_checkpoints_that_cannot_be_removed_are_reported(tmp_path):
    """Their job is forgotten all the same, and a namesake would go on from them."""
    told: list[tuple[str, str]] = []

    async def story() -> None:
        with place(tmp_path, PodTimes()) as there:
            pods = Pods(
                there.folders,
                LaunchCommands(there.folders, virtual_gpus=True),
                watch=there.watch,
                complain=lambda job, message: told.append((job, message)),
            )
            checkpoints = there.folders.checkpoints(KEY.job)
            checkpoints.parent.write_text("is no folder")
            pods.forget(KEY.job)
            ((_, message),) = told
            assert message.startswith(f"{checkpoints} cannot be removed (")

    live_through(story)


@pytest.mark.processes
def test_a_sidecar_that_stands_still_before_it_is_up_is_killed_with_its_keeper(tmp_path):
    async def story() -> None:
        with place(tmp_path, PodTimes()) as there:
            pod = BookedPod(there.folders, KEY.job, BOOKING)
            pod.folder.make()
            pod.folder.note_launch(0.0)
            words = (sys.executable, "-c", "import time; time.sleep(600)", f"--socket={pod.socket}")
            keeper, sidecar = (subprocess.Popen(words) for _ in range(2))
            pod.folder.note_process(keeper.pid)
            sidecar.send_signal(signal.SIGSTOP)
            there.pods.kill(there.entry, BOOKING)
            assert keeper.wait(LONGEST_SECONDS) == sidecar.wait(LONGEST_SECONDS) == -signal.SIGKILL
            await asyncio.sleep(0)

    live_through(story)
