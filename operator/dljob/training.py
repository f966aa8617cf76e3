"""
Lets a training program talk to DLJob in a few lines of its own.

Everything works without DLJob as well: then no checkpoint is ever asked for, folders are those that you give, and
reports go nowhere. So the same script runs under a plain ``torchrun``::

    from dljob import training

    resume = training.latest()                       # the newest complete checkpoint, or None
    for step in range(first, last):
        ...
        training.report(step, loss=loss)             # how far it is, with any metrics
        if training.should_save(step):               # the same answer on every rank
            save(training.folder() / f"step-{step}")

It needs Python 3.9 and its standard library. The SideCar puts its folder at the end of ``PYTHONPATH``;
elsewhere it comes with ``pip install dljob``. See docs/training.md.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import http.client
import json
import os
import re
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

__all__ = [
    "batch_size",
    "folder",
    "is_leader",
    "latest",
    "learning_rate_factor",
    "listen",
    "local_world_size",
    "mark_complete",
    "process_batch_size",
    "report",
    "should_save",
    "world_size",
]

REPORT_SECONDS = 0.2
"""At most so often progress is sent; what is left out in between is made good by the next report."""
MARKER = ".dljob-complete"
LARGEST_NUMBER = 1e300
METRIC_NAME = re.compile(r"[A-Za-z_][0-9A-Za-z_./@-]{0,63}")
"""The largest number, and the names of metrics, that the SideCar accepts."""


# --- checkpoints ------------------------------------------------------------------------------


def folder(default: str | os.PathLike[str] = "checkpoints") -> Path:
    """Return the folder of this job's checkpoints, and create it if need be; without DLJob, ``default``."""
    _listen_once()
    path = Path(os.environ.get("DLJOB_CHECKPOINT_DIR") or default)
    path.mkdir(parents=True, exist_ok=True)
    return path


def latest(default: str | None = None) -> str | None:
    """Return the path of the newest complete checkpoint; ``default`` where none is known by name."""
    _listen_once()
    return os.environ.get("DLJOB_CHECKPOINT_RESUME") or default


def should_save(step: int) -> bool:
    """
    Say whether to save now: true once for each request, at the same step on every rank.

    To be called by every rank after each step (or after each tenth: what matters is that all ranks call it
    with the same steps). Within one container the ranks agree through a few bytes of shared memory. Over
    several, they need ``torch.distributed``, and agree by one ``all_reduce`` of a single number.
    """
    _listen_once()
    return _agreement().take_request(step)


def listen(*signals: signal.Signals) -> None:
    """
    Take these signals, too, for a request to save, such as ``SIGTERM``.

    The signal that the job file names is listened to without being asked. Only the main thread can.
    """
    for each in signals:
        _Request.listen_to(each)


def mark_complete(path: str | os.PathLike[str], *, marker: str = "") -> None:
    """
    Write the marker of a checkpoint that all its writers have written, after all is on the disk.

    ``path`` is the checkpoint: its folder. Only one process may do it, and as the last. The job file says
    ``complete: marker``, and its ``marker`` if it has another name.
    """
    name = marker or os.environ.get("DLJOB_CHECKPOINT_MARKER") or MARKER
    path = Path(path)
    for each in sorted(path.rglob("*"), reverse=True):
        _sync(each)
    mark = path / name
    # Named when it is whole, so that there is no moment with an empty marker.
    unnamed = mark.with_name(f"{name}.tmp")
    unnamed.write_text(f"{time.time()}\n")
    _sync(unnamed)
    unnamed.replace(mark)
    for each in (path, path.parent):
        _sync(each)


def _sync(path: Path) -> None:
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)


# --- the place of this process, and its part of the batch -------------------------------------------


def is_leader() -> bool:
    """Whether this is the process of rank 0, or the only one."""
    return _number("RANK", "DLJOB_RANK", default=0) == 0


def world_size() -> int:
    """Return how many processes the job has now, on all machines."""
    return _number("WORLD_SIZE", "DLJOB_WORLD_SIZE", default=1)


def local_world_size() -> int:
    """Return how many of them are on this machine."""
    return _number("LOCAL_WORLD_SIZE", "DLJOB_LOCAL_WORLD_SIZE", default=world_size())


def batch_size(default: int) -> int:
    """Return the global batch size, which may change with the number of GPUs (``batch.elastic``)."""
    return _number("DLJOB_BATCH_SIZE", default=default)


def process_batch_size(default: int) -> int:
    """Return the part of the global batch that this process trains on."""
    return _number("DLJOB_PROCESS_BATCH_SIZE", default=default)


def learning_rate_factor() -> float:
    """Return by what to multiply the learning rate, because the global batch size has changed."""
    return float(os.environ.get("DLJOB_LEARNING_RATE_FACTOR") or 1.0)


def _number(*names: str, default: int) -> int:
    given = (os.environ.get(name) for name in names)
    return next((int(value) for value in given if value), default)


# --- progress ---------------------------------------------------------------------------------------


def report(step: int, *, epoch: float | None = None, **metrics: float) -> None:
    """
    Tell how many steps are done, with any metrics; only what rank 0 tells is sent.

    It needs ``progress: {http: true}`` or ``progress: {file: ...}`` in the job file. It never raises: a
    report that cannot be sent is named once on the error output, and so is a metric that is no finite number
    or whose name is not allowed; the step is reported without it, and the training goes on.
    """
    if is_leader():
        _Reporter.take(step, epoch, metrics)


class _Reporter:
    """Sends the reports, with a limit of their rate."""

    _due = 0.0
    _unsent: dict[str, Any] | None = None
    _has_complained = False
    _is_registered = False

    _left_out: ClassVar[set[str]] = set()
    """The metrics whose fault was reported already."""

    @classmethod
    def take(cls, step: int, epoch: float | None, metrics: dict[str, float]) -> None:
        known = {"iteration": cls._number("step", step), "epoch": cls._number("epoch", epoch)}
        told: dict[str, Any] = {name: value for name, value in known.items() if value is not None}
        if "iteration" in told:
            told["iteration"] = int(told["iteration"])
        numbers = {name: cls._number(name, value) for name, value in metrics.items()}
        told["metrics"] = {
            name: number
            for name, number in numbers.items()
            if number is not None and cls._is_name(name)
        }
        cls._unsent = told
        if not cls._is_registered:
            cls._is_registered = True
            # The limit of the rate may have held back the last report.
            atexit.register(cls.send)
        if time.monotonic() >= cls._due:
            cls.send()

    @classmethod
    def _number(cls, name: str, value: Any) -> float | None:
        """Return a number that can be sent; what is none is named once."""
        if value is None:
            return None
        try:
            number = float(value)
        except Exception:  # noqa: BLE001 - a value may be of any type, such as a tensor of several numbers
            cls._leave_out(name, "is not a number")
            return None
        if abs(number) <= LARGEST_NUMBER:
            return number
        cls._leave_out(name, f"is {number}, and only finite numbers are sent")
        return None

    @classmethod
    def _is_name(cls, name: str) -> bool:
        if METRIC_NAME.fullmatch(name):
            return True
        cls._leave_out(
            name,
            "is not allowed as a name; write at most 64 of A-Z a-z 0-9 _ . / @ - after a letter or _",
        )
        return False

    @classmethod
    def _leave_out(cls, name: str, why: str) -> None:
        if name not in cls._left_out:
            cls._left_out.add(name)
            print(f'dljob.training: "{name}" is left out of reports: it {why}', file=sys.stderr)  # noqa: T201 - there is no other way to the user

    @classmethod
    def send(cls) -> None:
        # Taken first: what cannot be sent is not repeated, because the next report says more.
        told, cls._unsent = cls._unsent, None
        if told is None:
            return
        cls._due = time.monotonic() + REPORT_SECONDS
        try:
            _send(told)
        except (OSError, http.client.HTTPException) as error:
            if not cls._has_complained:
                cls._has_complained = True
                print(f"dljob.training: progress cannot be reported: {error}", file=sys.stderr)  # noqa: T201 - there is no other way to the user


def _send(told: dict[str, Any]) -> None:
    address, file = os.environ.get("DLJOB_PROGRESS_SOCKET"), os.environ.get("DLJOB_PROGRESS_FILE")
    if address:
        _post(address, json.dumps(told))
    elif file:
        flat = {**told.pop("metrics"), **told}
        # In one call: the lines of several writers do not get into each other.
        with open(file, "ab", buffering=0) as lines:  # noqa: PTH123 - unbuffered
            lines.write(f"{json.dumps(flat)}\n".encode())


def _post(address: str, body: str) -> None:
    connection = http.client.HTTPConnection("localhost", timeout=5.0)
    connection.sock = socket.socket(socket.AF_UNIX)
    connection.sock.settimeout(5.0)
    try:
        connection.sock.connect(address)
        connection.request("POST", "/v1/progress", body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        if answer.status >= 400:
            raise OSError(f"{answer.status} {answer.read(200).decode(errors='replace')}")
    finally:
        connection.close()


# --- agreeing ---------------------------------------------------------------------------------------


class _Request:
    """Whether this process was asked to save, by a signal."""

    is_open = False
    _listens_to: ClassVar[set[int]] = set()

    @classmethod
    def listen_to(cls, signum: signal.Signals) -> None:
        if signum in cls._listens_to:
            return
        if threading.current_thread() is not threading.main_thread():
            raise RuntimeError(
                "dljob.training: only the main thread of Python can listen to signals; call"
                " training.folder() or training.listen() there before the training begins"
            )
        former = signal.getsignal(signum)

        def take(number: int, frame: Any) -> None:
            # A flag and no lock: this interrupts the program at any place,
            # also while it holds a lock.
            cls.is_open = True
            # A handler of the program's own is called as well; the default would end the process.
            if callable(former):
                former(number, frame)

        signal.signal(signum, take)
        cls._listens_to.add(signum)


def _listen_once() -> None:
    name = os.environ.get("DLJOB_CHECKPOINT_SIGNAL")
    if name:
        _Request.listen_to(signal.Signals[name])


class _Alone:
    """The agreement of a process that has no peers."""

    def take_request(self, _step: int) -> bool:
        due, _Request.is_open = _Request.is_open, False
        return due


class _Board:
    """
    The agreement of ranks in one container: a few bytes that all of them see.

    Each rank writes the step it has come to, and the rank that was asked fixes the step to save at: the one after
    the farthest that any rank has come to. All of it is done under one lock, so that no rank can have passed
    that step: to come to it, it has to take the lock after it was fixed.
    """

    _NUMBERS = struct.Struct("=qq")
    """A start of the ranks, and a step. Where a launcher starts its ranks again, old ones do not count."""

    def __init__(self, path: str, rank: int, *, world: int) -> None:
        # Opened by each rank itself: flock keeps apart what was opened apart, and not the copies
        # of an inherited descriptor.
        self._file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        self._place = rank + 1
        self._world = world
        self._start = _number("TORCHELASTIC_RESTART_COUNT", default=0)
        self._saved = -1

    def take_request(self, step: int) -> bool:
        with self._alone():
            self._write(self._place, step)
            agreed = self._read(0)
            if _Request.is_open and agreed <= self._saved:
                reached = [self._read(place) for place in range(1, self._world + 1)]
                # A rank that has not come to the former step must find it here yet.
                if agreed <= min(reached):
                    agreed = 1 + max(reached)
                    self._write(0, agreed)
        if not self._saved < agreed <= step:
            return False
        # A step that lies behind its time was agreed on before this process could have heard of it.
        self._saved, _Request.is_open = agreed, False
        return True

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        fcntl.flock(self._file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            # Not left to a close: a forked child, such as a worker of a data
            # loader, has the file open too.
            fcntl.flock(self._file, fcntl.LOCK_UN)

    def _read(self, place: int) -> int:
        data = os.pread(self._file, self._NUMBERS.size, place * self._NUMBERS.size)
        if len(data) < self._NUMBERS.size:
            return -1
        start, step = self._NUMBERS.unpack(data)
        # Unwritten bytes are zero, and so is the number of the first start: steps are written one higher.
        return step - 1 if start == self._start else -1

    def _write(self, place: int, step: int) -> None:
        data = self._NUMBERS.pack(self._start, step + 1)
        os.pwrite(self._file, data, place * self._NUMBERS.size)


class _Collective:
    """The agreement of ranks on several machines: whether any of them was asked."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        # By way of the processors, so that no GPU is waited for.
        self._group = torch.distributed.new_group(backend="gloo")

    def take_request(self, _step: int) -> bool:
        distributed = self._torch.distributed
        # A request that comes after this check counts at the next step.
        asked = self._torch.tensor([int(_Request.is_open)])
        # Each rank takes part at each step, asked or not: the others would
        # wait for one that does not.
        distributed.all_reduce(asked, op=distributed.ReduceOp.MAX, group=self._group)
        if not asked.item():
            return False
        _Request.is_open = False
        return True


_agreements: list[_Alone | _Board | _Collective] = []


def _agreement() -> _Alone | _Board | _Collective:
    """Return how the ranks agree; found at the first question, by all of them alike."""
    if not _agreements:
        _agreements.append(_find_agreement())
    return _agreements[0]


def _find_agreement() -> _Alone | _Board | _Collective:
    world, local = world_size(), local_world_size()
    if world == 1:
        return _Alone()
    board = os.environ.get("DLJOB_AGREEMENT")
    denied: OSError | None = None
    if board and local == world:
        try:
            return _Board(board, _number("RANK", "DLJOB_RANK", default=0), world=world)
        except OSError as error:
            # A program that has changed its user may not open it, on any of its ranks.
            denied = error
    torch = sys.modules.get("torch")
    if (
        torch is not None
        and torch.distributed.is_available()
        and torch.distributed.is_initialized()
    ):
        return _Collective(torch)
    if denied is not None:
        raise RuntimeError(
            f"dljob.training: {world} ranks cannot agree when to save, because they may not open {board}"
            f" ({denied.strerror}); call should_save after torch.distributed.init_process_group(), or"
            " let the whole container run as the user of the training (securityContext.runAsUser) instead"
            " of changing the user by gosu or setpriv"
        ) from denied
    raise RuntimeError(
        f"dljob.training: {world} ranks on several machines cannot agree when to save; call"
        " should_save after torch.distributed.init_process_group()"
    )
