"""
Keeps interpreters ready, so a start need not wait for its imports.

Spares are started like any process and not forked, because the threads of numpy and CUDA do not
survive a fork. A spare that has touched a GPU is discarded, because CUDA has fixed its visible
GPUs. After any failure the training starts cold, and the SideCar reports the reason.

The pool keeps as many spares as there can be processes, because importing takes longer than a
checkpoint. It discards spares when the training needs their memory. A start also takes a spare that
is not ready, because it is still ahead of a cold start.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from subprocess import DEVNULL

from dljob_sidecar.linux.kernel import send
from dljob_sidecar.linux.spawning import (
    CannotStart,
    Ended,
    Reaper,
    read_helper,
    start,
)
from dljob_sidecar.observing.rank_outputs import Outputs, ProcessOutput
from dljob_sidecar.warm.budgets import Budget

Problem = Callable[[str, str], None]


def read_link(path: str) -> str:
    try:
        return os.readlink(path)  # noqa: PTH115
    except OSError:
        return ""


class Spare:
    """A waiting interpreter, seen from outside."""

    def __init__(self, pid: int, orders: int, *, answers: int, output: ProcessOutput) -> None:
        self.pid = pid
        self.orders = orders
        self.answers = answers
        self.output = output
        self.is_ready = False
        self.order = b""
        """The order to send once the spare is ready."""
        self.unread = b""
        self.on_running: Callable[[str], None] | None = None

    def touched_gpu(self) -> bool:
        """Return True if the process has a GPU's device file open, as after the start of CUDA."""
        try:
            links = [one.path for one in os.scandir(f"/proc/{self.pid}/fd")]
            return any(read_link(one).startswith("/dev/nvidia") for one in links)
        except OSError:
            return False

    def memory_bytes(self) -> int:
        """Return the memory with all shared memory; cheap."""
        try:
            pages = Path(f"/proc/{self.pid}/statm").read_text(encoding="ascii").split()[1]
        except (OSError, IndexError):
            return 0
        return int(pages) * os.sysconf("SC_PAGE_SIZE")


def read_share(path: str) -> int:
    """Return the proportional share of memory from a kernel file; 0 if there is none."""
    try:
        words = Path(path).read_bytes().split()
        return int(words[words.index(b"Pss:") + 1]) << 10
    except (OSError, ValueError, IndexError):
        return 0


PYTHON = re.compile(r"python(\d(\.\d+)?)?")
FLAGS = re.compile(r"-[bBdEiOsuv]+")
FLAGS_WITH_VALUE = frozenset({"-W", "-X"})


@dataclass(frozen=True)
class Script:
    """A command, split into the interpreter and its program."""

    interpreter: tuple[str, ...]
    module: str
    """Empty for a file, which is then the first argument."""
    arguments: tuple[str, ...]


def take_apart(command: Sequence[str]) -> Script | None:
    """Return the parts of ``python [options] script …``; None for other commands."""
    if not PYTHON.fullmatch(Path(command[0]).name):
        return None
    rest = list(command[1:])
    interpreter = [command[0]]
    while rest and rest[0] != "-m":
        if FLAGS.fullmatch(rest[0]):
            interpreter.append(rest.pop(0))
        elif rest[0] in FLAGS_WITH_VALUE and len(rest) > 1:
            interpreter += [rest.pop(0), rest.pop(0)]
        else:
            break
    if rest[:1] == ["-m"]:
        return Script(tuple(interpreter), rest[1], tuple(rest[1:])) if len(rest) > 1 else None
    if not rest or rest[0].startswith("-"):
        return None
    return Script(tuple(interpreter), "", tuple(rest))


class SparePool:
    """
    The spare interpreters of one job.

    A spare that :meth:`take` returns is a training process; the pool no longer tracks it.
    """

    most_failures = 3
    refill_seconds = 1.0
    """The delay before new spares are made after a start, because the training has priority."""
    answer_seconds = 5.0
    waking_seconds = 60.0
    """The longest time that a start waits for a spare that is still importing."""
    review_seconds = 5.0
    """The interval between two checks that the spares fit into memory."""

    def __init__(
        self,
        *,
        command: Sequence[str],
        preload: Sequence[str],
        environment: Mapping[str, str],
        outputs: Outputs,
        reaper: Reaper,
        on_problem: Problem,
        on_relief: Callable[[str], None],
        on_change: Callable[[], None],
    ) -> None:
        """Call ``on_problem`` with a name and a sentence, and ``on_relief`` with the name."""
        self._script = take_apart(command) if preload else None
        self._preload = tuple(preload)
        self._source = read_helper("warm/spare.py")
        self._environment = dict(environment)
        self._outputs = outputs
        self._reaper = reaper
        self._on_problem = on_problem
        self._on_relief = on_relief
        self._on_change = on_change
        self._loop = asyncio.get_running_loop()
        self._spares: list[Spare] = []
        self._sent: dict[int, Spare] = {}
        """Spares that received their order and have not answered."""
        self._failures = 0
        self._timer: asyncio.TimerHandle | None = None
        self._review: asyncio.TimerHandle | None = None
        self._most = 0
        """The largest known number of processes in this container."""
        self._is_most_known = False
        self._steady = 0
        """The number of running processes."""
        self._coming = 0
        """The number of spares that the expected start needs; 0 if no start is expected."""
        self.budget = Budget()
        self.wanted = 0
        """The number of spares to keep now, limited by memory."""
        if preload and self._script is None:
            on_problem("NoWarmStart", f"not a Python script: {' '.join(command)[:200]}")

    # --- what there is ----------------------------------------------------------------------

    def pids(self) -> list[int]:
        return [one.pid for one in self._spares]

    @property
    def ready(self) -> int:
        return sum(one.is_ready for one in self._spares)

    @property
    def awaited(self) -> int:
        """
        The number of spares that are ready or will be soon; a start that waits for them is warm.

        Spares that cannot be made do not count. While the number of processes is unknown, one more
        counts, because a pool without a spare would seem to need none.
        """
        is_filling = self._timer is not None
        soon = self.wanted if is_filling else min(self.wanted, len(self._spares))
        return soon if self._is_most_known or not soon else max(soon, self.ready + 1)

    def memory_bytes(self) -> int:
        return sum(one.memory_bytes() for one in self._spares)

    # --- making them ------------------------------------------------------------------------

    @property
    def limit_bytes(self) -> int:
        """The memory limit of the spares at the last check."""
        return self.budget.limit_bytes

    def expect(self, most: int, *, is_known: bool = True) -> None:
        """Keep one spare for each of at most ``most`` processes, as far as memory allows."""
        self._most = most
        self._is_most_known = is_known
        self._update_wanted()
        if self._timer is None:
            self._fill()

    def prepare(self, count: int) -> None:
        """Make the spares for a start of ``count`` processes without further delay."""
        self._coming = count
        self._update_wanted()
        if self._timer is not None:
            self._timer.cancel()
        self._fill()

    def want(self, count: int) -> None:
        """Keep at least one spare for each running process."""
        self._steady, self._coming = count, 0
        self._update_wanted()
        self._discard_surplus()
        # Delay the replacement of spares that were just taken, because the start has priority.
        if self._timer is None:
            self._fill()

    def _update_wanted(self) -> None:
        """Set the number of spares to keep from the free memory."""
        asked = max(self._needed, self._most) if self._script else 0
        self.wanted, why = self.budget.allow(asked, ready=self.ready) if asked else (0, "")
        self._tell_limit(why)
        if asked and self._review is None:
            self._review = self._loop.call_later(self.review_seconds, self._review_memory)

    @property
    def _needed(self) -> int:
        """The known number of processes of the next start."""
        return max(self._steady, self._coming, 1)

    def _tell_limit(self, why: str) -> None:
        # Report too few spares only if the next start lacks some.
        if why and self.wanted < self._needed:
            self._on_problem("SparesLimited", why)
        elif not why:
            self._on_relief("SparesLimited")

    def _review_memory(self) -> None:
        """Discard spares when the training needs their memory; the next start makes them again."""
        self._review = self._loop.call_later(self.review_seconds, self._review_memory)
        allowed, why = self.budget.allow(self.wanted, ready=self.ready)
        if allowed < self.wanted:
            self.wanted = allowed
            self._tell_limit(why)
            self._discard_surplus()
            self._on_change()

    def _fill(self) -> None:
        self._timer = None
        while len(self._spares) < self.wanted and self._failures < self.most_failures:
            if not self._make():
                return

    def _fill_later(self) -> None:
        if self._timer is None:
            self._timer = self._loop.call_later(self.refill_seconds, self._fill)

    def _make(self) -> bool:
        assert self._script is not None
        from_us, orders = os.pipe()
        answers, to_us = os.pipe()
        output = self._outputs.open()
        passed = (from_us, to_us, *output.descriptors)
        numbers = [str(one) for one in passed]
        command = [*self._script.interpreter, "-c", self._source, *numbers, *self._preload]
        try:
            pid = start(
                command,
                env=self._environment,
                stdout=DEVNULL,
                stderr=DEVNULL,
                pass_fds=sorted({*passed, *self._outputs.passed}),
            )
        except CannotStart as error:
            self._fail(str(error))
            os.close(orders)
            os.close(answers)
            return False
        finally:
            os.close(from_us)
            os.close(to_us)
            output.let_go()
        spare = Spare(pid, orders, answers=answers, output=output)
        self._spares.append(spare)
        self._reaper.watch(pid, lambda ended: self._ended(spare, ended))
        os.set_blocking(answers, False)
        # A spare that does not read its order at once is not waiting for one.
        os.set_blocking(orders, False)
        self._loop.add_reader(answers, self._read, spare)
        return True

    def _read(self, spare: Spare) -> None:
        try:
            data = os.read(spare.answers, 65536)
        except BlockingIOError:
            return
        if not data:
            # The reaper reports an ended spare; one that only closed its pipe is useless.
            self._loop.remove_reader(spare.answers)
            self._refuse(spare, "it closed its pipe")
            return
        *lines, spare.unread = (spare.unread + data).split(b"\n")
        for line in lines:
            self._hear(spare, json.loads(line))

    def _hear(self, spare: Spare, said: dict[str, object]) -> None:
        if said.get("running") and spare.on_running:
            self._sent.pop(spare.pid, None)
            self._close(spare)
            spare.on_running("")
        elif said.get("ready"):
            self._hear_ready(spare)
        elif said.get("faults"):
            self._fail(f"cannot import {said['faults']}")
            self._drop(spare, f"it cannot import {said['faults']}")

    def _hear_ready(self, spare: Spare) -> None:
        if spare.touched_gpu():
            self._fail("what is preloaded uses a GPU while it is imported")
            self._drop(spare, "it has touched a GPU")
        else:
            spare.is_ready = True
            self._on_relief("NoWarmStart")
            # Its part of shared memory counts; reading that is expensive.
            share = read_share(f"/proc/{spare.pid}/smaps_rollup")
            self.budget.learn(share or spare.memory_bytes())
            if spare.order:
                self._send_order(spare, spare.order)
            else:
                # The size of one spare is known now, so more spares may exceed the limit.
                self._update_wanted()
                self._discard_surplus()
        self._on_change()

    def _discard_surplus(self) -> None:
        for spare in self._spares[self.wanted :]:
            self._discard(spare)

    def _drop(self, spare: Spare, reason: str) -> None:
        if spare in self._spares:
            self._discard(spare)
        else:
            self._refuse(spare, reason)

    def _fail(self, reason: str) -> None:
        self._failures += 1
        self._on_problem("NoWarmStart", f"the training starts cold: {reason}")

    def _ended(self, spare: Spare, ended: Ended) -> None:
        if spare in self._spares:
            self._spares.remove(spare)
            self._close(spare)
            self._fail(f"a spare interpreter ended: {ended}")
            self._fill_later()
            self._on_change()

    def _discard(self, spare: Spare) -> None:
        self._spares.remove(spare)
        self._reaper.forget(spare.pid)
        self._close(spare)
        # Only this loop collects children, so the process id still belongs to the spare.
        send(spare.pid, signal.SIGKILL)

    def _close(self, spare: Spare) -> None:
        if spare.answers >= 0:
            self._loop.remove_reader(spare.answers)
            os.close(spare.answers)
            os.close(spare.orders)
            # Clear the descriptors, because late timers would otherwise use numbers of other files.
            spare.answers = spare.orders = -1

    # --- using them -------------------------------------------------------------------------

    def take(
        self,
        environment: Mapping[str, str],
        on_running: Callable[[str], None],
        *,
        rank: int | None = None,
    ) -> int | None:
        """Turn a spare into a training process and return its id; None if no spare is left."""
        ready = (one for one in self._spares if one.is_ready)
        spare = next(ready, None) or next(iter(self._spares), None)
        if spare is None or self._script is None:
            return None
        if spare.touched_gpu():
            self._fail("a spare interpreter has touched a GPU")
            self._discard(spare)
            return None
        # Send only the variables that the spare lacks, because all of them may exceed the pipe.
        known = self._environment
        order = {
            "environment": {one: to for one, to in environment.items() if known.get(one) != to},
            "module": self._script.module,
            "arguments": list(self._script.arguments),
        }
        spare.on_running = on_running
        spare.output.sign(rank)
        self._spares.remove(spare)
        self._sent[spare.pid] = spare
        # The caller watches the process in this turn of the loop, before its end can be collected.
        self._reaper.forget(spare.pid)
        self._fill_later()
        self._failures = 0
        spare.order = json.dumps(order).encode() + b"\n"
        if spare.is_ready:
            self._send_order(spare, spare.order)
        else:
            self._loop.call_later(self.waking_seconds, self._give_up, spare)
        return spare.pid

    def output_of(self, pid: int) -> ProcessOutput:
        """Return the output of a spare that was just taken."""
        return self._sent[pid].output

    def _give_up(self, spare: Spare) -> None:
        if not spare.is_ready:
            self._refuse(spare, f"it is not ready after {self.waking_seconds:g} s")

    def _send_order(self, spare: Spare, order: bytes) -> None:
        try:
            while order:
                order = order[os.write(spare.orders, order) :]
        except OSError as error:
            # Call back later: the caller kills the spare by its process id, which take() has yet to
            # return.
            self._loop.call_soon(self._refuse, spare, error.strerror or str(error))
            return
        self._loop.call_later(self.answer_seconds, self._refuse, spare, "it does not answer")

    def _refuse(self, spare: Spare, reason: str) -> None:
        # Ignore late timers of a spare that has answered or was discarded.
        if spare.answers < 0:
            return
        if spare in self._spares:
            # The spare no longer waits for orders; the reaper will report its end.
            send(spare.pid, signal.SIGKILL)
            return
        self._sent.pop(spare.pid, None)
        self._close(spare)
        if spare.on_running:
            spare.on_running(reason)

    def read_answer(self, pid: int) -> None:
        """Read the answer that a spare wrote before it ended."""
        if pid in self._sent:
            self._read(self._sent[pid])

    def close(self) -> None:
        for timer in (self._timer, self._review):
            if timer is not None:
                timer.cancel()
        for spare in list(self._spares):
            self._discard(spare)
