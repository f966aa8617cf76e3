"""
Runs the user's regular expressions in a helper process, so they cannot stall the SideCar.

:class:`Matcher` hands the output of the training to a helper process
(:mod:`dljob_sidecar.observing.matching`) and calls back with the matches. The matcher never waits for
the helper: it keeps unanswered output up to a limit and drops the rest. A helper that exceeds its
time on one block is backtracking without end; the matcher kills the helper and reports the
expression by name. The next helper reads the unanswered output again, because any line may confirm
a checkpoint. The last allowed helper skips the unanswered output, so one burst does not use up all
helpers.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from dljob_sidecar.linux.family import read_file
from dljob_sidecar.linux.spawning import (
    CannotStart,
    Ended,
    Reaper,
    read_helper,
    start,
)
from dljob_sidecar.observing.matching import STREAMS

LARGEST_BLOCK = 65536
MOST_OPEN = 1024
MOST_OPEN_BYTES = 1 << 20
"""The limit of unanswered output; further output is dropped."""

Problem = Callable[[str, str], None]
"""Called with one word for programs and a sentence for people."""


@dataclass
class _Block:
    """A block of output; empty if output was dropped."""

    content: bytes
    stream: int
    beginning: int
    """The number of the beginning before which the block arrived."""
    was_tried: bool = False
    """True if a helper ended while it read this block."""


class Matcher:
    """Matches the two expressions of a job: for its progress and for confirmed checkpoints."""

    patience_seconds = 2.0
    """The processor time that the helper may spend on one block."""
    most_restarts = 3

    def __init__(
        self,
        *,
        reaper: Reaper,
        on_match: Callable[[dict[str, str], bool], None],
        on_problem: Problem,
        progress: str = "",
        confirm: str = "",
    ) -> None:
        """Call ``on_match`` with the groups, and True for output from before :meth:`begin`."""
        self._reaper = reaper
        self._on_match = on_match
        self._on_problem = on_problem
        self._expressions = [progress, confirm]
        self._source = read_helper("observing/matching.py")
        self._loop = asyncio.get_running_loop()
        self._beginnings = 0
        self._restarts = 0
        self._is_invalid = False
        self._pid: int | None = None
        self._requests = -1
        self._answers = -1
        self._reset()

    def _reset(self) -> None:
        self._unsent = b""
        self._unread = b""
        self._gaps: set[int] = set()
        """The streams with dropped output."""
        self._halves: set[int] = set()
        """The streams for which the helper holds an incomplete line."""
        self._open: deque[_Block] = deque()
        """The blocks without an answer."""
        self._open_bytes = 0
        self._watchdog: asyncio.TimerHandle | None = None
        self._cpu_at_answer = 0.0
        self._stuck: _Block | None = None
        """The block for which the helper was killed."""

    @property
    def pid(self) -> int | None:
        return self._pid

    @property
    def is_idle(self) -> bool:
        return not self._open

    def begin(self) -> None:
        """Start the helper if there is an expression; a new start resets earlier failures."""
        self._beginnings += 1
        self._restarts = 0
        if self._pid is None and any(self._expressions) and not self._is_invalid:
            self._start()

    def _start(self) -> None:
        to_helper, self._requests = os.pipe()
        self._answers, from_helper = os.pipe()
        command = [sys.executable, "-I", "-S", "-c", self._source, *self._expressions]
        try:
            # Pass on the environment, because some interpreters need it to find their library.
            pid = start(command, env=os.environ, stdin=to_helper, stdout=from_helper)
        except CannotStart as error:
            self._close()
            self._on_problem("HelperCannotStart", str(error))
            return
        finally:
            # Close the helper's ends, or its death would not end the file.
            os.close(to_helper)
            os.close(from_helper)
        self._pid = pid
        self._reaper.watch(pid, self._ended)
        os.set_blocking(self._requests, False)
        os.set_blocking(self._answers, False)
        self._loop.add_reader(self._answers, self._read)

    def stop(self) -> None:
        """End the helper; its pending answers are lost."""
        if self._pid is not None:
            # Forget the process first, because _ended() would start the next helper.
            self._reaper.forget(self._pid)
            self._kill()
            self._pid = None
        self._close()

    def _kill(self) -> None:
        assert self._pid is not None
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._pid, 9)

    def _close(self) -> None:
        if self._watchdog is not None:
            self._watchdog.cancel()
        if self._answers >= 0:
            self._loop.remove_reader(self._answers)
            os.close(self._answers)
        if self._requests >= 0:
            self._loop.remove_writer(self._requests)
            os.close(self._requests)
        self._requests = self._answers = -1
        self._reset()

    # --- what goes there --------------------------------------------------------------------

    def feed(self, output: bytes, stream: int = 0) -> None:
        """
        Hand over output of the training, or drop it if the helper is far behind.

        The streams stay separate: half a line of one stream may wait while the other stream
        continues.
        """
        if self._pid is None:
            return
        for begin in range(0, len(output), LARGEST_BLOCK):
            self._feed_block(output[begin : begin + LARGEST_BLOCK], stream)

    def skip(self) -> None:
        """Note that output was dropped, so the halves of two lines are not joined."""
        self._gaps.add(0)

    def _feed_block(self, block: bytes, stream: int) -> None:
        if len(self._open) >= MOST_OPEN or self._open_bytes + len(block) > MOST_OPEN_BYTES:
            self._gaps.add(stream)
            return
        self._put(_Block(block, stream, self._beginnings))
        # The block is already queued as open, so the next helper gets it if this one has died.
        self._send()

    def _put(self, block: _Block) -> None:
        if block.stream in self._gaps:
            self._gaps.remove(block.stream)
            self._put(_Block(b"", block.stream, block.beginning))
        content = block.content
        self._unsent += len(content).to_bytes(4, "big") + bytes([block.stream]) + content
        self._open.append(block)
        self._open_bytes += len(content)

    def _send(self) -> None:
        try:
            sent = os.write(self._requests, self._unsent[:LARGEST_BLOCK])
        except BlockingIOError:
            sent = 0
        except OSError:
            # The helper has ended, and the reaper will report that.
            self._unsent = b""
            return
        self._unsent = self._unsent[sent:]
        if self._unsent:
            self._loop.add_writer(self._requests, self._send)
        else:
            self._loop.remove_writer(self._requests)
        if self._watchdog is None and self._pid is not None:
            # The processor time until now was spent on answered blocks.
            self._cpu_at_answer = processor_seconds(self._pid)
            self._watch()

    # --- what comes back --------------------------------------------------------------------

    def _read(self) -> bool:
        """Read the answers; return True if there was one."""
        try:
            data = os.read(self._answers, LARGEST_BLOCK)
        except BlockingIOError:
            return False
        if not data:
            self._loop.remove_reader(self._answers)
            return False
        *lines, self._unread = (self._unread + data).split(b"\n")
        for line in lines:
            self._take(json.loads(line))
        if self._pid is not None:
            self._cpu_at_answer = processor_seconds(self._pid)
        return True

    def _take(self, answer: str | list[dict[str, str]]) -> None:
        if isinstance(answer, str):
            self._is_invalid = True
            self._on_problem("ExpressionInvalid", answer)
            return
        block = self._open.popleft()
        self._open_bytes -= len(block.content)
        # After a gap, drop the rest of a line as well.
        is_whole = block.content.endswith((b"\n", b"\r"))
        (self._halves.discard if is_whole else self._halves.add)(block.stream)
        for found in answer:
            self._on_match(found, block.beginning < self._beginnings)

    # --- what never comes back --------------------------------------------------------------

    def _watch(self) -> None:
        self._watchdog = self._loop.call_later(self.patience_seconds / 4, self._look)

    def _look(self) -> None:
        """
        Check whether the helper is stuck.

        Use its processor time, because a loaded machine delays healthy helpers.
        """
        self._watchdog = None
        if self._pid is None or not self._open:
            return
        if processor_seconds(self._pid) - self._cpu_at_answer <= self.patience_seconds:
            self._watch()
            return
        self._on_problem(
            "ExpressionTooSlow",
            f"an expression worked {self.patience_seconds:g} s on a few lines without an end: "
            f"{' or '.join(repr(one) for one in self._expressions if one)}",
        )
        self._stuck = self._open[0]
        # The next helper starts when the end of this one is reported and its last answers are read.
        self._kill()

    def _ended(self, ended: Ended) -> None:
        # Read the last answers, which may still be in the pipe.
        while self._read():
            pass
        self._pid = None
        # Give up the block on which this helper, or two helpers, ended.
        left = self._open
        if left and (left[0] is self._stuck or left[0].was_tried):
            self._halves.add(left.popleft().stream)
        elif left:
            left[0].was_tried = True
        # Keep these values, because _close() resets them and creates a new queue of open blocks.
        before, after = self._halves, self._gaps
        self._close()
        if self._is_invalid:
            return
        self._restarts += 1
        if self._restarts < self.most_restarts:
            self._start()
            self._hand_over(left, before, after=after)
        elif self._restarts == self.most_restarts:
            self._start()
            self._gaps = set(range(STREAMS))
        else:
            self._on_problem(
                "ExpressionGivenUp",
                f"the helper that reads the log ended {self._restarts} times, last by {ended}; "
                "it is tried again at the next start",
            )

    def _hand_over(self, left: deque[_Block], before: set[int], *, after: set[int]) -> None:
        """Let a new helper read the unanswered blocks, between the gaps."""
        if self._pid is None:
            return
        self._gaps = before
        for block in left:
            self._put(block)
        self._gaps |= after
        if left:
            self._send()


def processor_seconds(pid: int) -> float:
    """Return the processor time of a process, or 0 if there is none."""
    try:
        fields = read_file(f"/proc/{pid}/stat").rpartition(b")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return 0.0
