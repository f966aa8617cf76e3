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

A program that also passes a boundary after each step gets more or fewer ranks while its processes stay::

    training.init_process_group("nccl")              # instead of torch.distributed's
    batches = training.batches(len(data), batch_size=64, seed=0)
    net = training.live(model, optimizer, batches, wrap=DistributedDataParallel)
    for batch in batches:                            # the part of this rank: batch.samples
        ...
        training.boundary(batch.step)                # ranks join and leave here

It needs Python 3.9 and its standard library. The SideCar puts its folder at the end of ``PYTHONPATH``;
elsewhere install DLJob's wheel, or copy this file next to your script. See docs/training.md.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import functools
import http.client
import inspect
import io
import json
import math
import mmap
import os
import pickle
import random
import re
import signal
import socket
import struct
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, NoReturn

__all__ = [
    "batch_size",
    "batches",
    "boundary",
    "folder",
    "init_process_group",
    "is_leader",
    "joined_at",
    "latest",
    "learning_rate_factor",
    "listen",
    "live",
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
    _Request.step = step
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
    """Return the rank of this process; a live change may give it another."""
    return _number("RANK", "DLJOB_RANK", default=0)


def local_rank() -> int:
    """Return the number of this process on its machine, and of its GPU there; live changes keep it, and may leave gaps."""
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
    step: int | None = None
    """The step at which the program asked last."""
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
        restarts = _number("TORCHELASTIC_RESTART_COUNT", default=0)
        # A live change begins again with the ranks that it makes.
        self._start = restarts + (_number("DLJOB_GENERATION", default=0) << 16)
        # After a live trial, which keeps the start number, a save of before is not due once more.
        agreed = self._read(0)
        self._saved = agreed if agreed <= self._read(self._place) else -1

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

    def close(self) -> None:
        os.close(self._file)

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
    torch = _find_distributed()
    if torch is not None:
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


def _forget_agreement() -> None:
    """Let the ranks choose their agreement again; an open request stays open."""
    for agreement in _agreements:
        if isinstance(agreement, _Board):
            agreement.close()
    _agreements.clear()


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
    The position is the state: register the batches by :func:`live`, and save them in checkpoints.
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
        present = _number("DLJOB_BATCH_SIZE", default=batch_size)
        self._iteration = round(present / learning_rate_factor())
        """The samples of one iteration: the batch size before DLJob changed it."""
        ends = (steps and steps * self._iteration, epochs and epochs * length)
        self._last_sample = min((each for each in ends if each is not None), default=None)
        self._side = math.isqrt(length - 1) + 1
        self._keys: tuple[int, list[int]] = (-1, [])
        self.step = 0
        self.taken = 0
        """The number of samples that all ranks together have taken."""

    @property
    def iterations(self) -> int:
        """The finished iterations of ``training.batchSize``: a step with twice that batch counts as two."""
        return self.taken // self._iteration

    def __iter__(self) -> Iterator[Batch]:
        while (found := self._find(self.step, self.taken)) is not None:
            batch, self.taken = found
            self.step = batch.step
            yield batch

    def ahead(self) -> Iterable[list[int]]:
        """Return the ``batch_sampler`` of a DataLoader, whose workers read ahead; see :meth:`over`."""
        return _Ahead(self)

    def over(self, loader: Iterable[Any]) -> Iterator[tuple[Batch, Any]]:
        """Yield each batch with the data of a loader of :meth:`ahead`, which begins again after a change."""
        while (found := self._find(self.step, self.taken)) is not None:
            members = _Live.changes
            for data in loader:
                batch, self.taken = found
                self.step = batch.step
                yield batch, data
                found = self._find(self.step, self.taken)
                # The workers have read parts of the former ranks ahead.
                if found is None or members != _Live.changes:
                    break

    def state_dict(self) -> dict[str, int]:
        return {"step": self.step, "taken": self.taken}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.step, self.taken = state["step"], state["taken"]

    def _find(self, step: int, taken: int) -> tuple[Batch, int] | None:
        """Return the batch after a position, and the position after it; None at the end."""
        size = batch_size(self._batch_size)
        if self._last_sample is not None:
            size = min(size, self._last_sample - taken)
        if size <= 0:
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


class _Ahead:
    """The parts of this rank from the present position on, without moving it."""

    def __init__(self, batches: Batches) -> None:
        self._batches = batches

    def __iter__(self) -> Iterator[list[int]]:
        step, taken = self._batches.step, self._batches.taken
        while (found := self._batches._find(step, taken)) is not None:  # noqa: SLF001 - another view of it
            batch, taken = found
            step = batch.step
            yield batch.samples


def batches(
    length: int,
    batch_size: int,
    *,
    seed: int = 0,
    steps: int | None = None,
    epochs: int | None = None,
) -> Batches:
    """
    Return the global batches of a training over ``length`` samples, shuffled in another order in each epoch.

    Any number of ranks gets parts of the same batches. They end after ``steps`` batches or
    ``epochs`` epochs, or never. With an elastic batch DLJob's size replaces ``batch_size``, and ``steps``
    counts steps of the first size.
    """
    return Batches(length, batch_size, seed=seed, steps=steps, epochs=epochs)


# --- live changes: ranks join and leave while the others stay ---------------------------------------


def init_process_group(backend: str | None = None, **options: Any) -> None:
    """
    Initialise ``torch.distributed`` as its own function does, so that ranks can join and leave later.

    A process that joins a running training returns at once, and is in the group when :func:`live`
    returns. A process without a launcher becomes the only rank.
    """
    torch = _find_torch()
    if torch is None:
        raise RuntimeError("dljob.training: import torch before init_process_group()")
    process = _Live.find()
    if process is not None:
        process.group = _Group(torch, backend, options)
        process.group.begin(is_newcomer=bool(process.joins))
    elif options or "RANK" in os.environ:
        torch.distributed.init_process_group(backend, **options)
    else:
        store = torch.distributed.HashStore()
        torch.distributed.init_process_group(backend, store=store, rank=0, world_size=1)


def live(*parts: Any, wrap: Callable[[Any], Any] | None = None, sharded: Any = None) -> Any:
    """
    Register the state of the training, and return the wrapped first part.

    Each part has ``state_dict`` and ``load_state_dict``. A process that joins waits here until the others
    reach a boundary, and gets their state, with that of the random numbers. ``wrap``, such as
    ``DistributedDataParallel``, is called now and after each change; what this function returns passes every
    call and attribute on to the latest result. ``sharded`` is one more part, whose state is spread over the ranks: all
    former ranks call its ``state_dict`` together, which returns the whole state, then all new ranks call ``wrap`` with
    it and its ``load_state_dict``.
    """
    process = _Live.find()
    if process is None:
        first = parts[0] if sharded is None else sharded
        return _Wrapped(wrap(first) if wrap else first)
    return process.register(parts, wrap=wrap, sharded=sharded)


def boundary(step: int) -> bool:
    """
    Pass a boundary after each step, on all ranks, and return what :func:`should_save` does.

    ``step`` rises by exactly one, because the ranks agree on the very number at which a change takes place.
    When a change is due this call carries it out: a rank that leaves exits here, and the others return as
    ranks of the new number. Call it last in a step, after anything else that all ranks do together. Where the program
    has called :func:`should_save` at this step, the request is answered, and this function returns False.
    """
    process = _Live.registered
    # Newcomers begin with the next step, so the ranks cannot save this one together.
    if process is not None and process.passes(step):
        return False
    return _Request.step != step and should_save(step)


def joined_at(default: int = 0) -> int:
    """Return the finished steps of the running training that this process joined; otherwise ``default``."""
    process = _Live.registered
    return default if process is None or process.joined_step is None else process.joined_step


class _Wrapped:
    """The latest result of ``wrap``, under one name."""

    def __init__(self, wrapped: Any) -> None:
        self._wrapped = wrapped

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return self._wrapped(*arguments, **named)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._wrapped, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "_wrapped":
            super().__setattr__(name, value)
        else:
            setattr(self._wrapped, name, value)


class _Change(NamedTuple):
    """A change as the SideCar declares it."""

    number: int
    """The number under which it is pending; that of a trial is negative."""
    generation: int
    since: int
    members: list[int]
    """By new rank: the old rank of the process that stays, or -1 for a newcomer."""
    containers: int
    store: dict[str, Any]
    batch_size: int
    learning_rate_factor: float
    seconds: float
    slots: dict[int, int]
    """The slots of this container, by new rank."""
    local_ranks: dict[int, int]

    @classmethod
    def read(cls, folder: Path, number: int) -> _Change:
        told = json.loads((folder / f"change-{number}.json").read_text(encoding="utf-8"))
        return cls(
            number,
            told["generation"],
            told["since"],
            told["members"],
            told["containers"],
            told["store"],
            told["batchSize"],
            told["learningRateFactor"],
            told["seconds"],
            {int(new): slot for new, slot in told["slots"].items()},
            {int(new): local for new, local in told["localRanks"].items()},
        )

    @property
    def newcomers(self) -> list[int]:
        return [new for new, old in enumerate(self.members) if old < 0]

    @property
    def leader(self) -> int:
        """The lowest new rank of a process that stays: it hands its state over."""
        return next(new for new, old in enumerate(self.members) if old >= 0)


class _Live:
    """
    This process in the live changes of its start.

    SideCar and processes share a board of numbers: a header, and a slot of each process, which that
    process alone writes. Values that several write or compare are under the lock of the file.
    """

    registered: ClassVar[_Live | None] = None
    """This process, once :func:`live` has registered its state."""
    changes: ClassVar[int] = 0
    """The number of changes that this process has gone through."""
    _found: ClassVar[list[_Live | None]] = []

    # The places of the numbers, eight bytes each, in the header and in a slot.
    PENDING, AT, WITHDRAWN, STATE = 1, 2, 3, 4
    SLOT = 8
    PID, CAPABLE, SEEN, STEP, JOINED, JOINED_STEP, PAUSE, FAILED = range(8)

    PAUSE_SECONDS = 0.002
    """Between two looks at what another process writes."""

    @classmethod
    def find(cls) -> _Live | None:
        """Return this process, or None if no live change can reach it."""
        folder = os.environ.get("DLJOB_LIVE")
        # The processes of a launcher such as torchrun inherit the variables of the launcher.
        if not folder or os.environ.get("TORCHELASTIC_RUN_ID", "dljob") != "dljob":
            return None
        if not cls._found:
            try:
                cls._found.append(cls(Path(folder), _number("DLJOB_LIVE_SLOT", default=0)))
            except (OSError, ValueError) as error:
                cls._complain(str(error))
                cls._found.append(None)
        return cls._found[0]

    @staticmethod
    def _complain(reason: str) -> None:
        print(f"dljob.training: no live changes: {reason}", file=sys.stderr)  # noqa: T201 - there is no other way to the user

    def __init__(self, folder: Path, slot: int) -> None:
        self._folder, self._slot = folder, slot
        self._file = os.open(folder / "board", os.O_RDWR | os.O_CLOEXEC)
        memory = mmap.mmap(self._file, 0)
        magic, self._slots = struct.unpack_from("=4sI", memory)
        if magic != b"DLJ1":
            raise ValueError(f"{folder}/board is of another version of DLJob")
        # A view writes a number at once, so that no reader sees half of one; struct does not.
        self._numbers = memoryview(memory).cast("q")
        self._mine = self.SLOT * (slot + 1)
        self.generation = _number("DLJOB_GENERATION", default=0)
        self.joins = _number("DLJOB_JOINS", default=0)
        self.group: _Group | None = None
        self.joined_step: int | None = None
        self._change: _Change | None = None
        self._handled = self._unreachable = 0
        self._has_left = False
        self._write(self.JOINED_STEP, -1)

    def register(
        self, parts: tuple[Any, ...], *, wrap: Callable[..., Any] | None, sharded: Any
    ) -> _Wrapped:
        self._parts, self._wrap, self._sharded = parts, wrap, sharded
        self._wrapped = _Wrapped(None)
        _Live.registered = self
        self._write(self.PID, os.getpid())
        if self.group is None and _find_distributed() is not None:
            self._complain("the process group is not of training.init_process_group()")
        else:
            self._write(self.CAPABLE, 1)
        if self.joins:
            self._join()
        else:
            self._wrap_again({})
            self._write(self.JOINED, self.generation)
        return self._wrapped

    def passes(self, step: int) -> bool:
        """Pass a boundary; return True if a change took place at it."""
        if self._has_left:
            # The program has caught the exit.
            sys.exit(0)
        numbers = self._numbers
        numbers[self._mine + self.STEP] = step
        pending = numbers[self.PENDING]
        if pending in (0, self._handled):
            return False
        entered = time.monotonic()
        try:
            at = self._agree(pending, step)
        except Exception as error:  # noqa: BLE001 - any error ends the process
            self._fail(pending, error)
        if 0 <= at < step:
            self._fail(pending, RuntimeError(f"step {at} has passed: this rank is at {step}"))
        if at != step:
            return False
        assert self._change is not None
        self._carry_out(self._change, step=step, entered=entered)
        return True

    # --- agreeing on the step -----------------------------------------------------------------------

    def _agree(self, pending: int, step: int) -> int:
        """Acknowledge a change, and return the step after which it takes place; -1 while it is open."""
        with self._alone():
            if self._numbers[self.PENDING] != pending:
                # The SideCar has withdrawn it.
                return -1
            change = self._take(pending)
            if change.containers == 1:
                self._write(self.SEEN, pending)
                return self._settle(change)
        if self._unreachable == pending:
            return -1
        try:
            return self._agree_afar(change, step)
        except Exception:
            if self._numbers[self.AT] >= 0:
                raise
            # The rank that keeps the store joins and is gone again. The others need no such rank, and train on.
            self._unreachable = pending
            return -1

    def _take(self, pending: int) -> _Change:
        if self._change is None or self._change.number != pending:
            self._change = _Change.read(self._folder, pending)
            if self._change.containers > 1 and self.group is None:
                raise RuntimeError("a change of several containers needs PyTorch's process group")
            if self.group is not None:
                self.group.expect(self._change, is_host=self._find_rank(self._change) == 0)
        return self._change

    def _settle(self, change: _Change) -> int:
        """Set the step if all processes of the container are ready; the lock is held."""
        slots = range(self.SLOT, self.SLOT * (self._slots + 1), self.SLOT)
        old = [slot for slot in slots if self._numbers[slot + self.JOINED] == change.since]
        new = [self.SLOT * (slot + 1) for slot in change.slots.values()]
        ready = (self._numbers[slot + self.SEEN] == change.number for slot in {*old, *new})
        if self._numbers[self.AT] < 0 and all(ready):
            self._numbers[self.AT] = 1 + max(self._numbers[slot + self.STEP] for slot in old)
        return int(self._numbers[self.AT])

    def _agree_afar(self, change: _Change, step: int) -> int:
        """Agree through the store of the new group; ranks of several containers share no memory."""
        assert self.group is not None
        store = self.group.find_store()
        if store is None:
            return -1
        if self._numbers[self._mine + self.SEEN] != change.number:
            self._write(self.SEEN, change.number)
            store.add("ready", 1)
        at: int = store.add("at", 0)
        is_leader = self._find_rank(change) == change.leader
        expected = world_size() + len(change.newcomers)
        if not at and is_leader and store.add("ready", 0) == expected:
            # On the board first, because the SideCar withdraws no change that has its step there.
            if not self._tell_step(step + 2, of=change.number):
                return -1
            # A step holds a collective, so every rank reads this number before it reaches the step.
            at = store.add("at", step + 2)
        if not at:
            return -1
        self._tell_step(at, of=change.number)
        return at

    def _tell_step(self, at: int, *, of: int) -> bool:
        """Write the step of a change onto the board; return False if the SideCar has withdrawn the change."""
        with self._alone():
            if self._numbers[self.PENDING] != of:
                return False
            self._numbers[self.AT] = at
            return True

    def _find_rank(self, change: _Change) -> int | None:
        """Return the rank of this process in a change; None if it leaves."""
        if self._slot not in change.slots.values():
            return None
        return next(new for new, slot in change.slots.items() if slot == self._slot)

    # --- the change itself --------------------------------------------------------------------------

    def _carry_out(self, change: _Change, *, step: int, entered: float) -> None:
        """Go from one number of ranks to the other as an old rank; a rank that leaves exits."""
        new = self._find_rank(change)
        with self._limited(change):
            # All old ranks together, because each holds a part of this state.
            whole = None if self._sharded is None else self._sharded.state_dict()
            if self.group is not None:
                self.group.arrive(world_size())
            if new is not None:
                self._take_place(change, new)
                if self.group is not None:
                    self.group.connect(change)
                # A trial as well, because a state that cannot be packed must not end a training that grows.
                if new == change.leader and (change.newcomers or change.number < 0):
                    self._numbers[self.STATE] = self._hand_over(change, step, whole)
                self._begin_again(whole)
        if new is None:
            self._has_left = True
            # One of the others is the leader now, also for exit handlers.
            os.environ.update(RANK="-1", DLJOB_RANK="-1")
            self._write(self.JOINED, -change.number)
            sys.exit(0)
        self._finish(change, step, pause=time.monotonic() - entered)

    def _join(self) -> None:
        """Wait for the change as a newcomer, and take over the state of the others."""
        self._wait_until(lambda: self._numbers[self.PENDING] == self.joins)
        try:
            change = self._take(self.joins)
            new = self._find_rank(change)
            assert new is not None
            group, handed_over = self.group, self._folder / f"state-{change.number}"
            if change.containers == 1:
                # The last process that acknowledges sets the step, so the others need the lock no more: one that hangs
                # here must not keep it.
                self._agree(self.joins, step=0)
                self._wait_until(lambda: self._numbers[self.AT] >= 0)
            else:
                assert group is not None
                self._wait_until(lambda: group.find_store() is not None)
                group.find_store().add("ready", 1)
                self._write(self.SEEN, change.number)
            self._wait_until(handed_over.exists if group is None else group.has_arrived)
            if change.containers > 1:
                # No other process of this container may know the step.
                assert group is not None
                self._tell_step(group.find_store().add("at", 0), of=self.joins)
        except Exception as error:  # noqa: BLE001 - any error ends the process
            self._fail(self.joins, error)
        with self._limited(change):
            self._take_place(change, new)
            if self.group is not None:
                self.group.connect(change)
            state = self._receive(change)
            for number, part in enumerate(self._parts):
                part.load_state_dict(state["parts"][number])
            _write_random(state["random"])
            self._begin_again(state["whole"])
            self.joined_step = state["step"]
        self.joins = 0
        self._finish(change, state["step"], pause=0.0)

    def _hand_over(self, change: _Change, step: int, whole: Any) -> int:
        """Pack the state for the newcomers, if there are any, and return its size in bytes."""
        parts = [part.state_dict() for part in self._parts]
        state = {"parts": parts, "random": _read_random(), "step": step, "whole": whole}
        if self.group is not None:
            return self.group.send(change, state)
        packed = pickle.dumps(state)
        if change.newcomers:
            path = self._folder / f"state-{change.number}"
            unnamed = path.with_name(f"{path.name}.tmp")
            unnamed.write_bytes(packed)
            unnamed.replace(path)
        return len(packed)

    def _receive(self, change: _Change) -> dict[str, Any]:
        if self.group is not None:
            received: dict[str, Any] = self.group.receive(change)
            return received
        path = self._folder / f"state-{change.number}"
        state: dict[str, Any] = pickle.loads(path.read_bytes())  # noqa: S301 - it is this job's own
        return state

    def _begin_again(self, whole: Any) -> None:
        options = {} if self.group is None else self.group.find_options(self._wrap)
        self._wrap_again(options)
        if self._sharded is not None:
            self._sharded.load_state_dict(whole)

    def _wrap_again(self, options: dict[str, Any]) -> None:
        first = self._parts[0] if self._sharded is None else self._sharded
        # The former one ends first, because its hooks would still reduce the gradients.
        self._wrapped._wrapped = None  # noqa: SLF001 - made for this class
        if self._wrap is not None:
            first = self._wrap(first, **options)
        self._wrapped._wrapped = first  # noqa: SLF001

    def _take_place(self, change: _Change, new: int) -> None:
        """Change the variables by which this module and others know the place of this process."""
        world, local = len(change.members), len(change.slots)
        place = {
            "RANK": new,
            "ROLE_RANK": new,
            "DLJOB_RANK": new,
            "LOCAL_RANK": change.local_ranks[new],
            "WORLD_SIZE": world,
            "ROLE_WORLD_SIZE": world,
            "DLJOB_WORLD_SIZE": world,
            "LOCAL_WORLD_SIZE": local,
            "DLJOB_LOCAL_WORLD_SIZE": local,
        }
        # A framework has these variables only if the SideCar has set them.
        known = {name: str(number) for name, number in place.items() if name in os.environ}
        os.environ.update(known, DLJOB_RANK=str(new), DLJOB_WORLD_SIZE=str(world))
        os.environ["DLJOB_GENERATION"] = str(change.generation)
        if size := change.batch_size:
            own = size * (new + 1) // world - size * new // world
            os.environ["DLJOB_BATCH_SIZE"] = str(size)
            os.environ["DLJOB_PROCESS_BATCH_SIZE"] = str(own)
            os.environ["DLJOB_LEARNING_RATE_FACTOR"] = repr(change.learning_rate_factor)

    def _finish(self, change: _Change, step: int, *, pause: float) -> None:
        _forget_agreement()
        _Live.changes += 1
        self._handled, self.generation = change.number, change.generation
        self._write(self.STEP, step)
        self._write(self.PAUSE, round(pause * 1e6))
        self._write(self.JOINED, change.generation)
        # Written last, because it completes the change.
        self._write(self.JOINED_STEP, step)

    # --- the board ----------------------------------------------------------------------------------

    def _write(self, place: int, number: int) -> None:
        self._numbers[self._mine + place] = number

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        fcntl.flock(self._file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(self._file, fcntl.LOCK_UN)

    def _wait_until(self, is_so: Callable[[], bool]) -> None:
        """Wait as a newcomer, which the SideCar ends if it takes too long; exit if the change is withdrawn."""
        while not is_so():
            if self._numbers[self.WITHDRAWN] >= self.joins:
                sys.exit(0)
            time.sleep(self.PAUSE_SECONDS)

    @contextlib.contextmanager
    def _limited(self, change: _Change) -> Iterator[None]:
        """End the process if the change fails or takes too long: the job restarts from its checkpoint."""
        late = TimeoutError(f"it took longer than {change.seconds:g} s")
        # In a thread, because a wait inside of a framework notices no signal.
        timer = threading.Timer(change.seconds, self._fail, (change.number, late))
        timer.daemon = True
        timer.start()
        try:
            yield
        except Exception as error:  # noqa: BLE001 - any error ends the process
            self._fail(change.number, error)
        finally:
            timer.cancel()

    def _fail(self, number: int, error: Exception) -> NoReturn:
        reason = f"{type(error).__name__}: {error}"
        with contextlib.suppress(Exception):
            traceback.print_exception(type(error), error, error.__traceback__)
            print(f"dljob.training: live change {number} failed: {reason}", file=sys.stderr)  # noqa: T201 - there is no other way to the user
            sys.stdout.flush()
        with contextlib.suppress(OSError):
            (self._folder / f"failed-{self._slot}").write_text(reason, encoding="utf-8")
        self._write(self.FAILED, number)
        # Without exit handlers, which may wait for ranks that are gone.
        os._exit(1)


def _read_random() -> dict[str, Any]:
    """Return the state of all generators of random numbers that the program uses."""
    state: dict[str, Any] = {"python": random.getstate()}
    numpy, torch = sys.modules.get("numpy"), _find_torch()
    if numpy is not None:
        state["numpy"] = numpy.random.get_state()
    if torch is not None:
        state["torch"] = torch.get_rng_state()
        if torch.cuda.is_initialized():
            state["cuda"] = torch.cuda.get_rng_state(_find_gpu(torch))
    return state


def _write_random(state: dict[str, Any]) -> None:
    random.setstate(state["python"])
    numpy, torch = sys.modules.get("numpy"), _find_torch()
    if numpy is not None and "numpy" in state:
        numpy.random.set_state(state["numpy"])
    if torch is not None and "torch" in state:
        torch.set_rng_state(state["torch"])
        if "cuda" in state:
            torch.cuda.set_rng_state(state["cuda"], _find_gpu(torch))


# --- the process group of PyTorch -------------------------------------------------------------------


def _find_torch() -> Any:
    """Return PyTorch if the program has imported it; this module never does."""
    return sys.modules.get("torch")


def _find_gpu(torch: Any) -> str:
    """Return the GPU of this process: the current one is another process's where a program never calls ``set_device``."""
    place = local_rank()
    # A process that sees its own GPU alone knows it as the first.
    return f"cuda:{place if place < torch.cuda.device_count() else 0}"


def _find_distributed() -> Any:
    """Return PyTorch if the program has initialised its process group."""
    torch = _find_torch()
    is_usable = torch is not None and torch.distributed.is_available()
    return torch if is_usable and torch.distributed.is_initialized() else None


class _Group:
    """
    The default process group: how its ranks change, and how newcomers get tensors.

    PyTorch 2.14 and later reconfigure a group of gloo or nccl2, by functions that are not public; they are used in
    :meth:`_reconfigure` alone. Other groups are destroyed and made again.
    """

    _RECONFIGURABLE = ("gloo", "nccl2")
    _PIECE = 1 << 20
    """The elements that a rank passes on at a time."""
    _SMALL = 1 << 12
    """The size of a tensor on the processor up to which it is sent with the other objects."""

    def __init__(self, torch: Any, backend: str | None, options: dict[str, Any]) -> None:
        self._torch, self._distributed = torch, torch.distributed
        self._backend = backend
        # The ranks meet at the store of each change.
        meeting = ("init_method", "store", "rank", "world_size")
        self._options = {name: each for name, each in options.items() if name not in meeting}
        self._reconfigures = backend in self._RECONFIGURABLE and hasattr(
            self._distributed, "_reconfigure"
        )
        self._store: Any = _make_moving_store(self._distributed) if self._reconfigures else None
        self._coming: Any = None
        self._error: Exception | None = None
        self._expected: _Change | None = None

    # --- the store of the coming group --------------------------------------------------------------

    def begin(self, *, is_newcomer: bool) -> None:
        """Make the group of a start; a newcomer makes its own when it joins."""
        if is_newcomer:
            return
        host, port = os.environ.get("MASTER_ADDR", ""), _number("MASTER_PORT", default=0)
        limit = self._options.get("timeout", timedelta(seconds=300))
        if world_size() == 1:
            store = self._distributed.HashStore()
        else:
            store = self._open(host, port, limit, is_host=is_leader())
        self._make(_number("DLJOB_GENERATION", default=0), store, limit)

    def expect(self, change: _Change, *, is_host: bool) -> None:
        """Open the store of a change, without waiting for a rank that hosts it."""
        self._expected, self._coming, self._error = change, None, None
        limit = timedelta(seconds=change.seconds)
        file = change.store.get("file")
        if not file:
            host, port = change.store["host"], change.store["port"]
            if is_host:
                self._coming = self._open(host, port, limit, is_host=True)
            else:
                threading.Thread(target=self._open_afar, args=(change,), daemon=True).start()
        elif is_host:
            self._coming = self._open("127.0.0.1", 0, limit, is_host=True)
            unnamed = Path(f"{file}.tmp")
            unnamed.write_text(str(self._coming.port), encoding="ascii")
            unnamed.replace(file)

    def find_store(self) -> Any:
        """Return the store of the expected change if it can be reached already, otherwise None."""
        change = self._expected
        assert change is not None
        if self._error is not None:
            raise self._error
        file = change.store.get("file")
        if self._coming is None and file and Path(file).exists():
            port = int(Path(file).read_text(encoding="ascii"))
            limit = timedelta(seconds=change.seconds)
            self._coming = self._open("127.0.0.1", port, limit, is_host=False)
        return self._coming

    def _open_afar(self, change: _Change) -> None:
        """Wait in a thread until a rank of another container hosts the store."""
        host, port = change.store["host"], change.store["port"]
        # Not by TCPStore itself, which in PyTorch 1.13 lets no other thread run while it waits.
        while self._expected is change and not _is_open(host, port):
            time.sleep(_Live.PAUSE_SECONDS)
        try:
            limit = timedelta(seconds=change.seconds)
            store = self._open(host, port, limit, is_host=False)
        except Exception as error:  # noqa: BLE001 - it is raised where the store is asked for
            self._error = error
        else:
            if self._expected is change:
                self._coming = store

    def _open(self, host: str, port: int, limit: timedelta, *, is_host: bool) -> Any:
        store = self._distributed.TCPStore
        return store(host, port, None, is_host, timeout=limit, wait_for_workers=False)

    # --- from the former ranks to the new ones ------------------------------------------------------

    def arrive(self, count: int) -> None:
        """Wait for all ``count`` former ranks, because a rank that closes its connections disturbs the last step of others."""
        if self._torch.cuda.is_initialized():
            self._torch.cuda.synchronize(_find_gpu(self._torch))
        store = self.find_store()
        if store is None:
            raise RuntimeError("the store of the new ranks is missing")
        if store.add("arrived", 1) == count:
            store.set("all arrived", "")
            store.add("begun", 1)
        store.wait(["all arrived"])

    def has_arrived(self) -> bool:
        """Return whether all former ranks have arrived, for a newcomer."""
        store = self.find_store()
        return store is not None and store.add("begun", 0) > 0

    def connect(self, change: _Change) -> None:
        """Make the group of the new ranks, as one of them."""
        # A trial has a negative number, and each change of a start needs its own.
        number = 2 * abs(change.number) + (change.number < 0)
        self._make(number, self.find_store(), timedelta(seconds=change.seconds))

    def _make(self, number: int, store: Any, limit: timedelta) -> None:
        if self._reconfigures:
            self._reconfigure(number, store, limit)
            return
        if self._distributed.is_initialized():
            self._distributed.destroy_process_group()
        self._initialize(store)

    def _initialize(self, store: Any, **more: Any) -> None:
        self._distributed.init_process_group(
            self._backend,
            store=store,
            rank=rank(),
            world_size=world_size(),
            **self._options,
            **more,
        )

    def _reconfigure(self, number: int, store: Any, limit: timedelta) -> None:
        """Use what PyTorch does not promise to keep; a test of the frameworks says when it changes."""
        distributed = self._distributed
        self._store.latest = store
        if not distributed.is_initialized():
            self._initialize(self._store, enable_reconfigure=True)
        world = distributed.distributed_c10d._world  # noqa: SLF001 - as said above
        group = distributed.group.WORLD
        # Groups of the former ranks mean nothing to the new ones.
        for former in [each for each in world.pg_map if each is not group]:
            distributed.destroy_process_group(former)
        place, count = rank(), world_size()
        store.set(f"handle {place}", distributed._get_reconfigure_handle())  # noqa: SLF001
        handles = [store.get(f"handle {each}").decode() for each in range(count)]
        distributed._reconfigure(number, handles, timeout=limit).wait()  # noqa: SLF001
        world.pg_group_ranks[group] = {each: each for each in range(count)}
        # Newcomers and others count the groups that they make from the same number.
        world.group_count = 1

    # --- the state for newcomers --------------------------------------------------------------------

    def find_options(self, wrap: Any) -> dict[str, Any]:
        """Return the options for wrapping what all ranks hold already: DDP need not broadcast it once more."""
        wrapper = wrap.func if isinstance(wrap, functools.partial) else wrap
        if wrapper is not self._torch.nn.parallel.DistributedDataParallel:
            return {}
        is_known = "init_sync" in inspect.signature(wrapper).parameters
        return {"init_sync": False} if is_known else {}

    def send(self, change: _Change, state: Any) -> int:
        """Pack the state, send it to the newcomers, if there are any, and return its size in bytes."""
        packed = io.BytesIO()
        packer = _Packer(packed, self._torch, self._is_sent_apart)
        packer.dump(state)
        if change.newcomers:
            self._coming.set("state", packed.getvalue())
            self._pass_on(packer.tensors, after=None, to=change.newcomers[0])
        apart = sum(each.numel() * each.element_size() for each in packer.tensors)
        return packed.tell() + int(apart)

    def receive(self, change: _Change) -> Any:
        unpacker = _Unpacker(io.BytesIO(self._coming.get("state")), self._torch)
        state = unpacker.load()
        line = [change.leader, *change.newcomers, None]
        place = line.index(rank())
        self._pass_on(unpacker.tensors, after=line[place - 1], to=line[place + 1])
        return state

    def _is_sent_apart(self, found: Any) -> bool:
        torch = self._torch
        if not isinstance(found, torch.Tensor) or found.layout is not torch.strided:
            return False
        if found.device.type == "cpu":
            is_small = found.numel() * found.element_size() <= self._SMALL
            return not is_small and "nccl" not in (self._backend or "").replace("cpu:gloo", "")
        return True

    def _pass_on(self, tensors: list[Any], *, after: int | None, to: int | None) -> None:
        """Pass tensors along the line of newcomers, so that all get them in the time of one."""
        pieces = [piece for tensor in tensors for piece in tensor.reshape(-1).split(self._PIECE)]
        # All at once, because gloo sends nothing before its receiver has asked for it.
        asked = [self._distributed.irecv(piece, after) for piece in pieces if after is not None]
        sent = []
        for place, piece in enumerate(pieces):
            if asked:
                asked[place].wait()
            if to is not None:
                sent.append(self._distributed.isend(piece, to))
        for each in sent:
            each.wait()


def _is_open(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), timeout=1.0).close()
    except OSError:
        return False
    return True


def _make_moving_store(distributed: Any) -> Any:
    """Return a store that a group can keep; it does what its ``latest`` does, the store of the latest ranks."""

    def pass_on(name: str) -> Callable[..., Any]:
        return lambda store, *arguments: getattr(store.latest, name)(*arguments)

    names = (
        "add",
        "check",
        "compare_set",
        "delete_key",
        "get",
        "num_keys",
        "set",
        "set_timeout",
        "wait",
    )
    return type("MovingStore", (distributed.Store,), {name: pass_on(name) for name in names})()


class _Packer(pickle.Pickler):
    """Packs objects, and leaves out the tensors that the group sends."""

    def __init__(self, file: io.BytesIO, torch: Any, is_sent_apart: Callable[[Any], bool]) -> None:
        super().__init__(file)
        self._torch, self._is_sent_apart = torch, is_sent_apart
        self.tensors: list[Any] = []

    def reducer_override(self, found: Any) -> Any:
        """Pack a view without the rest of the storage that it is a part of."""
        if type(found) is not self._torch.Tensor or found.layout is not self._torch.strided:
            return NotImplemented
        # PyTorch 1.13 has only the former name.
        storage = getattr(found, "untyped_storage", found.storage)()
        if storage.nbytes() <= found.numel() * found.element_size():
            return NotImplemented
        return found.detach().clone().__reduce_ex__(pickle.HIGHEST_PROTOCOL)

    def persistent_id(self, found: Any) -> Any:
        if not self._is_sent_apart(found):
            return None
        tensor = found.detach().contiguous()
        self.tensors.append(tensor)
        return tuple(tensor.shape), tensor.dtype, tensor.device.type


class _Unpacker(pickle.Unpickler):  # noqa: S301 - a rank of this job has packed it
    """Unpacks objects, with room for the tensors that the group sends."""

    def __init__(self, file: io.BytesIO, torch: Any) -> None:
        super().__init__(file)
        self._torch = torch
        self.tensors: list[Any] = []

    def persistent_load(self, told: Any) -> Any:
        shape, dtype, device = told
        own = _find_gpu(self._torch) if device == "cuda" else device
        tensor = self._torch.empty(shape, dtype=dtype, device=own)
        self.tensors.append(tensor)
        return tensor
