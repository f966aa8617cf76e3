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
elsewhere install DLJob's wheel, or copy this file next to your script. See docs/training.md.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import http.client
import json
import math
import os
import random
import re
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

__all__ = [
    "batch_size",
    "batches",
    "folder",
    "is_leader",
    "latest",
    "learning_rate_factor",
    "listen",
    "local_rank",
    "local_world_size",
    "mark_complete",
    "process_batch_size",
    "rank",
    "report",
    "should_save",
    "world_size",
]

REPORT_SECONDS = 0.2
"""The shortest interval between two sent reports; the next report includes a skipped one."""
MARKER = ".dljob-complete"
LARGEST_NUMBER = 1e300
METRIC_NAME = re.compile(r"[A-Za-z_][0-9A-Za-z_./@-]{0,63}")
"""The metric names that the SideCar accepts."""


# --- checkpoints ------------------------------------------------------------------------------


def folder(default: str | os.PathLike[str] = "checkpoints") -> Path:
    """Return this job's checkpoint folder and create it if missing; without DLJob, ``default``."""
    _listen_once()
    path = Path(os.environ.get("DLJOB_CHECKPOINT_DIR") or default)
    path.mkdir(parents=True, exist_ok=True)
    return path


def latest(default: str | None = None) -> str | None:
    """Return the path of the newest complete checkpoint; ``default`` if none is known."""
    _listen_once()
    return os.environ.get("DLJOB_CHECKPOINT_RESUME") or default


def should_save(step: int) -> bool:
    """
    Return True if the training must save now: once per request, at the same step on every rank.

    Call it on all ranks with the same steps, for example after each or every tenth step. Ranks in
    one container agree through a few bytes of shared memory. Ranks in several containers need
    ``torch.distributed`` and agree by one ``all_reduce`` of a single number.
    """
    _listen_once()
    return _agreement().take_request(step)


def listen(*signals: signal.Signals) -> None:
    """
    Treat these signals, such as ``SIGTERM``, as further requests to save.

    The signal in the job file needs no call. Call this function only in the main thread.
    """
    for each in signals:
        _Request.listen_to(each)


def mark_complete(path: str | os.PathLike[str], *, marker: str = "") -> None:
    """
    Write the marker file of a checkpoint after all its writers have finished and synced.

    ``path`` is the folder of the checkpoint. Only one process may call this, as the last step. Set
    ``complete: marker`` in the job file, and ``marker`` if the file has another name.
    """
    name = marker or os.environ.get("DLJOB_CHECKPOINT_MARKER") or MARKER
    path = Path(path)
    for each in sorted(path.rglob("*"), reverse=True):
        _sync(each)
    mark = path / name
    # Rename the file when it is complete, because an empty marker must never be visible.
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
    """Return True in the process of rank 0, or in the only process."""
    return rank() == 0


def rank() -> int:
    """Return the rank of this process; 0 is the leader's."""
    return _number("RANK", "DLJOB_RANK", default=0)


def local_rank() -> int:
    """Return the rank among the processes of this machine."""
    return _number("LOCAL_RANK", default=0)


def world_size() -> int:
    """Return the number of processes of the job on all machines."""
    return _number("WORLD_SIZE", "DLJOB_WORLD_SIZE", default=1)


def local_world_size() -> int:
    """Return the number of processes of the job on this machine."""
    return _number("LOCAL_WORLD_SIZE", "DLJOB_LOCAL_WORLD_SIZE", default=world_size())


def batch_size(default: int) -> int:
    """Return the global batch size, which may change with the number of GPUs (``batch.elastic``)."""
    return _number("DLJOB_BATCH_SIZE", default=default)


def process_batch_size(default: int) -> int:
    """Return the share of the global batch that this process trains on."""
    return _number("DLJOB_PROCESS_BATCH_SIZE", default=default)


def learning_rate_factor() -> float:
    """Return the factor for the learning rate that the changed global batch size requires."""
    return float(os.environ.get("DLJOB_LEARNING_RATE_FACTOR") or 1.0)


def _number(*names: str, default: int) -> int:
    given = (os.environ.get(name) for name in names)
    return next((int(value) for value in given if value), default)


# --- progress ---------------------------------------------------------------------------------------


def report(step: int, *, epoch: float | None = None, **metrics: float) -> None:
    """
    Report the number of finished steps and any metrics; only the reports of rank 0 are sent.

    The job file must have ``progress: {http: true}`` or ``progress: {file: ...}``. This function
    never raises. It prints an error once for a report that cannot be sent, and for a metric with an
    invalid name or value, which it leaves out.
    """
    if is_leader():
        _Reporter.take(step, epoch, metrics)


class _Reporter:
    """Sends the reports at a limited rate."""

    _due = 0.0
    _unsent: dict[str, Any] | None = None
    _has_complained = False
    _is_registered = False

    _left_out: ClassVar[set[str]] = set()
    """The metrics for which an error was printed."""

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
            # Send the last report at exit, because the rate limit may have delayed it.
            atexit.register(cls.send)
        if time.monotonic() >= cls._due:
            cls.send()

    @classmethod
    def _number(cls, name: str, value: Any) -> float | None:
        """Return a number that can be sent; print an error once for any other value."""
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
        # Clear the report first: a failed report is not retried, because the next one is newer.
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
        # Write each line in one call, so lines of several writers do not mix.
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
    """The flag that a signal sets to request a save."""

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
            # Set a flag without a lock, because a signal handler can interrupt code that holds the
            # lock.
            cls.is_open = True
            # Call the program's own handler, but not the default, which would end the process.
            if callable(former):
                former(number, frame)

        signal.signal(signum, take)
        cls._listens_to.add(signum)


def _listen_once() -> None:
    name = os.environ.get("DLJOB_CHECKPOINT_SIGNAL")
    if name:
        _Request.listen_to(signal.Signals[name])


class _Alone:
    """The agreement of a single process."""

    def take_request(self, _step: int) -> bool:
        due, _Request.is_open = _Request.is_open, False
        return due


class _Board:
    """
    The agreement of ranks in one container, through a few bytes of a shared file.

    Each rank writes its latest step. The rank that received the request sets the step to save at:
    one after the latest step of any rank. All ranks do this under one lock, so no rank can have
    passed the step to save at.
    """

    _NUMBERS = struct.Struct("=qq")
    """The start number and a step; entries of an earlier start are ignored."""

    def __init__(self, path: str, rank: int, *, world: int) -> None:
        # Open the file in each rank, because flock does not separate copies of an inherited
        # descriptor.
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
                # Keep the agreed step until every rank has reached it.
                if agreed <= min(reached):
                    agreed = 1 + max(reached)
                    self._write(0, agreed)
        if not self._saved < agreed <= step:
            return False
        # Ignore a request whose step passed before this process started.
        self._saved, _Request.is_open = agreed, False
        return True

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        fcntl.flock(self._file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            # Unlock explicitly, because forked children such as data loader workers also hold the
            # file open.
            fcntl.flock(self._file, fcntl.LOCK_UN)

    def _read(self, place: int) -> int:
        data = os.pread(self._file, self._NUMBERS.size, place * self._NUMBERS.size)
        if len(data) < self._NUMBERS.size:
            return -1
        start, step = self._NUMBERS.unpack(data)
        # Store steps plus one, because unwritten bytes and the first start's number are 0.
        return step - 1 if start == self._start else -1

    def _write(self, place: int, step: int) -> None:
        data = self._NUMBERS.pack(self._start, step + 1)
        os.pwrite(self._file, data, place * self._NUMBERS.size)


class _Collective:
    """The agreement of ranks on several machines: True if any rank received a request."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        # Use gloo on the CPUs, because NCCL would wait for the GPUs.
        self._group = torch.distributed.new_group(backend="gloo")

    def take_request(self, _step: int) -> bool:
        distributed = self._torch.distributed
        # A request that arrives after this line counts at the next step.
        asked = self._torch.tensor([int(_Request.is_open)])
        # Every rank takes part at every step, because the other ranks block until all have joined.
        distributed.all_reduce(asked, op=distributed.ReduceOp.MAX, group=self._group)
        if not asked.item():
            return False
        _Request.is_open = False
        return True


_agreements: list[_Alone | _Board | _Collective] = []


def _agreement() -> _Alone | _Board | _Collective:
    """Return the agreement of the ranks; all ranks choose it at the first call."""
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
            return _Board(board, rank(), world=world)
        except OSError as error:
            # No rank of a program that has changed its user may open the file.
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


# --- the data of a training whose ranks change ------------------------------------------------------


class Batch(NamedTuple):
    """The part of this rank in one global batch."""

    step: int
    """The number of this batch in the training, from 1."""
    epoch: int
    """The epoch of the first sample of the global batch, from 0."""
    samples: list[int]
    weight: float
    """Multiply the mean loss of ``samples`` by it, because the parts of the ranks may differ by one sample."""


class Batches:
    """
    The global batches of a training; each rank iterates over its parts of them.

    The global batches follow from length, batch size and seed alone, so no change of the ranks repeats
    a sample or leaves one out. Where the batch size divides no epoch, a batch goes on into the next one.
    The position is the state, which belongs into checkpoints.
    """

    _FACTOR = 0x9E3779B97F4A7C15
    _BITS = (1 << 64) - 1

    def __init__(
        self, length: int, batch_size: int, *, seed: int, steps: int | None, epochs: int | None
    ) -> None:
        if length < 1 or batch_size < 1:
            raise ValueError(
                "dljob.training: batches need at least one sample, and one in each batch"
            )
        self._length, self._batch_size, self._seed = length, batch_size, seed
        self._last_step = steps
        self._last_sample = None if epochs is None else epochs * length
        self._side = math.isqrt(length - 1) + 1
        self._keys: tuple[int, list[int]] = (-1, [])
        self.step = 0
        self.taken = 0
        """The number of samples that all ranks together have taken."""

    def __iter__(self) -> Iterator[Batch]:
        while (found := self._find(self.step, self.taken)) is not None:
            batch, self.taken = found
            self.step = batch.step
            yield batch

    def state_dict(self) -> dict[str, int]:
        return {"step": self.step, "taken": self.taken}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.step, self.taken = state["step"], state["taken"]

    def _find(self, step: int, taken: int) -> tuple[Batch, int] | None:
        """Return the batch after a position, and the position after it; None at the end."""
        size = batch_size(self._batch_size)
        if self._last_sample is not None:
            size = min(size, self._last_sample - taken)
        if size <= 0 or step == self._last_step:
            return None
        world = world_size()
        mine = range(taken + rank(), taken + size, world)
        # A rank without a sample takes part in the collectives of the step with one that counts nothing.
        samples = [self._draw(place) for place in mine or (taken,)]
        batch = Batch(step + 1, taken // self._length, samples, len(mine) * world / size)
        return batch, taken + size

    def _draw(self, place: int) -> int:
        """
        Return the sample at a place of the endless order of all epochs.

        A Feistel network shuffles without a list, so a newcomer in the middle of an epoch of a billion
        samples draws at once. It permutes a square, and a number beyond the length is shuffled again.
        """
        epoch, sample = divmod(place, self._length)
        if self._keys[0] != epoch:
            chance = random.Random(f"{self._seed} {epoch}")
            self._keys = epoch, [chance.getrandbits(64) for _ in range(4)]
        side, factor, bits = self._side, self._FACTOR, self._BITS
        while True:
            left, right = divmod(sample, side)
            for key in self._keys[1]:
                mixed = (right ^ key) * factor & bits
                mixed = (mixed ^ mixed >> 32) * factor & bits
                left, right = right, (left + (mixed >> 32)) % side
            sample = left * side + right
            if sample < self._length:
                return sample


def batches(
    length: int,
    batch_size: int,
    *,
    seed: int = 0,
    steps: int | None = None,
    epochs: int | None = None,
) -> Batches:
    """
    Return the global batches of a training over ``length`` samples, shuffled anew in each epoch.

    All ranks get parts of the same batches, whatever their number. They end after ``steps`` batches or
    ``epochs`` epochs, or never. With an elastic batch DLJob's size replaces ``batch_size``.
    """
    return Batches(length, batch_size, seed=seed, steps=steps, epochs=epochs)
