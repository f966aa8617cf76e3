"""
Reads the state of each pod from its files and processes, and starts SideCars again that have died.

A launched pod whose lock is free has *ended* if it has no socket, and *died* if it has one (:mod:`dljob.local.pods.processes`).
"""

import logging
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from dljob.control.situation.ports import Address, Entry, Pod, PodKey, PodPhase
from dljob.control.situation.status import Booking
from dljob.core.model import JobId
from dljob.core.primitives.once_per_change import OncePerChange
from dljob.core.profiles import Costs
from dljob.local.files import bounded_checks
from dljob.local.files.bounded_checks import NoAnswerError
from dljob.local.folders import Folders
from dljob.local.pods.launching import is_only_swept
from dljob.local.pods.pod_folders import BookedPod, pods_of
from dljob.local.pods.removing import Remover
from dljob.local.pods.sidecar_processes import SideCarProcesses
from dljob.local.pods.trainers import folder_problems
from dljob.local.pods.watching import PodWatch

log = logging.getLogger(__name__)

CANNOT_BEGIN = "SideCarCannotBegin"

LAST_BYTES = 1 << 14
COMPLAINS, READY = " ERROR ", " INFO ready; "
"""Parts of the lines in which a SideCar logs an error, and that it is ready."""
LONGEST_WORDS = 400

RESTART_SECONDS = (0.0, 1.0, 2.0, 5.0, 10.0, 30.0)
"""
The waits before a SideCar that died is started again; the last one repeats.

No :class:`~dljob.core.primitives.backoff.Backoff`, because the first restart does not wait: the job's GPUs are idle meanwhile.
"""

DYING_SECONDS = 0.2
"""How soon a pod is read again whose last process is ending and cannot be watched."""


@dataclass(frozen=True, slots=True)
class PodTimes:
    """The least time that pods take to start and to end, in seconds."""

    start: float = 0.0
    start_per_gpu: float = 0.0
    end: float = 0.0

    @classmethod
    def of(cls, costs: Costs, *, faster: float = 1.0) -> "PodTimes":
        """Take the times from costs, divided by ``faster``."""
        return cls(
            costs.pod_initialization / faster,
            costs.pod_initialization_per_gpu / faster,
            costs.pod_termination / faster,
        )

    def to_start(self, entry: Entry, booking: Booking) -> float:
        placement = entry.status.placement
        slices = placement.slices if placement is not None else ()
        gpus = sum(len(part.gpus) for part in slices if part.node == booking.node)
        return self.start + self.start_per_gpu * gpus


AT_ONCE = PodTimes()


class PodStates:
    """The states of all pods, and how often each SideCar has died."""

    def __init__(
        self,
        folders: Folders,
        processes: SideCarProcesses,
        *,
        watch: PodWatch,
        times: PodTimes,
        remover: Remover,
        address: Callable[[JobId, Booking], Address],
    ) -> None:
        self._folders = folders
        self._processes = processes
        self._watch = watch
        self._times = times
        self._remover = remover
        self._address = address
        self._deaths: dict[tuple[PodKey, int], tuple[int, float]] = {}
        self._unread: OncePerChange[PodKey] = OncePerChange()
        """Folders that cannot be read, each logged once."""
        self._living: set[int] = set()
        self._soonest: float | None = None
        """The seconds until pods are read again even if nothing happens."""

    def read(self, entries: Iterable[Entry]) -> dict[PodKey, Pod]:
        self._processes.reap()
        self._living.clear()
        self._soonest = None
        pods: dict[PodKey, Pod] = {}
        booked: set[tuple[PodKey, int]] = set()
        for entry in entries:
            for pod in pods_of(self._folders, entry):
                booked.add(pod.name)
                pods[pod.key] = self._read_safely(entry, pod)
        for gone in self._deaths.keys() - booked:
            del self._deaths[gone]
        self._unread.keep(pods.keys())
        self._watch.processes(self._living)
        self._watch.after(self._soonest)
        return pods

    def _read_safely(self, entry: Entry, pod: BookedPod) -> Pod:
        """Read one pod. An error in its files affects only this pod."""
        try:
            seen = self._read_one(entry, pod)
            left = pod.left() if pod.has_ever_been_up else None
        except (OSError, ValueError) as error:
            why = f"its folder {pod.folder.path} cannot be read: {error}"
            if self._unread.note(pod.key, why):
                log.error("%s: %s", pod.key, why)  # noqa: TRY400 - where in our code says nothing
            return Pod(pod.key, PodPhase.LOST, reason="FolderUnreadable", message=why)
        self._unread.settle(pod.key)
        return seen if left is None else replace(seen, left=left)

    def _read_one(self, entry: Entry, pod: BookedPod) -> Pod:
        key = pod.key
        self._processes.watch_sockets(key.job)
        address = self._address(key.job, pod.booking)
        if not pod.was_launched:
            return Pod(key, PodPhase.PENDING)
        if self._processes.is_alive(pod):
            pids = pod.pids()
            self._living.update(pids)
            if not pids:
                self._read_again_in(DYING_SECONDS)
            # A SideCar without a socket is about to end, as its last answers show.
            is_up = pod.has_ever_been_up and self._wait(pod.folder.seconds_to_start())
            phase, start = PodPhase.UP if is_up else PodPhase.PENDING, pod.folder.noted_process()
            return Pod(key, phase, address if is_up else None, start=start)
        # This is also a broken link that the user has put there.
        if os.path.lexists(pod.socket):
            return self._start_again(entry, pod)
        if pod.folder.was_removed or pod.has_ever_been_up:
            end = self._times.end
            if end > 0.0 and not self._wait(pod.folder.seconds_to_end(end)):
                return Pod(key, PodPhase.UP, address)
            # A killed SideCar does not free its memory.
            self._remover.remove(key.job, self._folders.memory(key, pod.booking.serial))
            words = last_words(pod.log)
            reason = CANNOT_BEGIN if words else ""
            return Pod(key, PodPhase.ENDED, reason=reason, message=words, stuck=bool(words))
        return self._start_again(entry, pod)

    def _wait(self, left: float) -> bool:
        """Schedule the next reading; return whether the wait is over."""
        if left > 0.0:
            self._read_again_in(left)
        return left <= 0.0

    def _read_again_in(self, seconds: float) -> None:
        self._soonest = seconds if self._soonest is None else min(seconds, self._soonest)

    def _start_again(self, entry: Entry, pod: BookedPod) -> Pod:
        try:
            missing = _missing_folder(entry)
        except NoAnswerError as error:
            return _cannot_start(pod, error)
        if missing and not pod.has_ever_been_up:
            # The pod never ran and every attempt would fail, so the job has failed to start.
            return Pod(pod.key, PodPhase.ENDED, reason=CANNOT_BEGIN, message=missing, fault=True)
        deaths, last = self._deaths.get(pod.name, (0, 0.0))
        pause = RESTART_SECONDS[min(deaths, len(RESTART_SECONDS) - 1)]
        left = last + pause - time.monotonic()
        if left > 0.0:
            self._read_again_in(left)
            words = last_words(pod.log)
            why = f" ({words})" if words else ""
            reason = f"its SideCar died{why}, and is started again soon"
            return Pod(pod.key, PodPhase.PENDING, reason="CrashLoopBackOff", message=reason)
        self._deaths[pod.name] = (deaths + 1, time.monotonic())
        log.warning("the SideCar of %s is started again", pod.key)
        try:
            self._processes.start(entry, pod, seconds=self._times.to_start(entry, pod.booking))
        except (OSError, ValueError) as error:
            return _cannot_start(pod, error)
        return Pod(pod.key, PodPhase.PENDING, reason="Restarting")


def _cannot_start(pod: BookedPod, error: Exception) -> Pod:
    why = f"its SideCar died, and cannot be started again: {error}"
    return Pod(pod.key, PodPhase.PENDING, reason="CannotStart", message=why)


def _missing_folder(entry: Entry) -> str:
    """
    Name the missing folder of the job's program; raises :class:`~dljob.local.files.bounded_checks.NoAnswerError`.
    """
    if is_only_swept(entry):
        return ""
    # The event loop waits for the answer, so its time is limited.
    is_folder = partial(bounded_checks.ask, look=os.path.isdir)
    problems = folder_problems(entry.job, entry.document, is_folder=is_folder)
    return next((each.message for each in problems), "")


def last_words(log: Path) -> str:
    """Return the last error in the log of a SideCar since it was last ready: a ready SideCar reports errors itself."""
    try:
        with log.open("rb") as file:
            file.seek(-min(LAST_BYTES, file.seek(0, os.SEEK_END)), os.SEEK_END)
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return ""
    words = ""
    for line in lines:
        if READY in line:
            words = ""
        elif COMPLAINS in line:
            words = line.partition(COMPLAINS)[2]
    return "".join(each if each.isprintable() else "?" for each in words[:LONGEST_WORDS])
