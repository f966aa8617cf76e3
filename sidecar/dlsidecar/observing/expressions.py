"""
Running the user's regular expressions where they cannot stall anything.

:class:`Matcher` hands the output of the training to a helper process (:mod:`dlsidecar.observing.matching`)
and calls back with what matched. It never waits for it: what the helper has not answered yet is
kept, and of a training that says more than can be kept the rest is left out. A helper that works on
one block for longer than it may is backtracking without end; it is killed, and the expression is
reported by name. The next helper reads the unanswered output again, because a single line of it may
be the one that confirms a checkpoint. Only the last allowed helper starts with the output that comes
then, so that one burst does not use up all of them.
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

from dlsidecar.linux.family import read_file
from dlsidecar.linux.spawning import (
    CannotStart,
    Ended,
    Reaper,
    read_helper,
    start,
)
from dlsidecar.observing.matching import STREAMS

LARGEST_BLOCK = 65536
MOST_OPEN = 1024
MOST_OPEN_BYTES = 1 << 20
"""The most output that may wait for its answers; output beyond that is left out."""

Problem = Callable[[str, str], None]
"""Called with one word for programs and a sentence for people."""


@dataclass
class _Block:
    """Output that was handed over together; empty where output was left out."""

    content: bytes
    stream: int
    beginning: int
    """After which beginning it was handed over."""
    was_tried: bool = False
    """True if a helper has ended while it read this."""


class Matcher:
    """The two expressions of a job: of its progress, and of the line that confirms a checkpoint."""

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
        """``on_match`` gets what was found, and whether it was handed over before :meth:`begin`."""
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
        """The streams of which something was left out."""
        self._halves: set[int] = set()
        """The streams of which the helper has the beginning of a line."""
        self._open: deque[_Block] = deque()
        """The blocks that wait for their answers."""
        self._open_bytes = 0
        self._watchdog: asyncio.TimerHandle | None = None
        self._cpu_at_answer = 0.0
        self._stuck: _Block | None = None
        """Over what the helper is killed."""

    @property
    def pid(self) -> int | None:
        return self._pid

    @property
    def is_idle(self) -> bool:
        return not self._open

    def begin(self) -> None:
        """Start the helper, if there is anything to match; a new beginning forgives the old."""
        self._beginnings += 1
        self._restarts = 0
        if self._pid is None and any(self._expressions) and not self._is_invalid:
            self._start()

    def _start(self) -> None:
        to_helper, self._requests = os.pipe()
        self._answers, from_helper = os.pipe()
        command = [sys.executable, "-I", "-S", "-c", self._source, *self._expressions]
        try:
            # As we were started: some interpreters do not find their own library without.
            pid = start(command, env=os.environ, stdin=to_helper, stdout=from_helper)
        except CannotStart as error:
            self._close()
            self._on_problem("HelperCannotStart", str(error))
            return
        finally:
            # Its ends: while we hold a copy of the writing one, its death brings no end of file.
            os.close(to_helper)
            os.close(from_helper)
        self._pid = pid
        self._reaper.watch(pid, self._ended)
        os.set_blocking(self._requests, False)
        os.set_blocking(self._answers, False)
        self._loop.add_reader(self._answers, self._read)

    def stop(self) -> None:
        """End the helper. Its missing answers are lost."""
        if self._pid is not None:
            # Forgotten first, because _ended() would start the next one.
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
        Hand over output of the training, or leave it out where the helper is far behind.

        Two streams are not mixed: half a line of one stream may wait for its other half
        while the other stream goes on.
        """
        if self._pid is None:
            return
        for begin in range(0, len(output), LARGEST_BLOCK):
            self._feed_block(output[begin : begin + LARGEST_BLOCK], stream)

    def skip(self) -> None:
        """Note that output was left out, so that two halves of lines are not joined."""
        self._gaps.add(0)

    def _feed_block(self, block: bytes, stream: int) -> None:
        if len(self._open) >= MOST_OPEN or self._open_bytes + len(block) > MOST_OPEN_BYTES:
            self._gaps.add(stream)
            return
        self._put(_Block(block, stream, self._beginnings))
        # The block is in the queue of open ones by now, so that a helper that has just died loses
        # nothing: the next one gets it.
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
            # It is gone; its end is about to be collected.
            self._unsent = b""
            return
        self._unsent = self._unsent[sent:]
        if self._unsent:
            self._loop.add_writer(self._requests, self._send)
        else:
            self._loop.remove_writer(self._requests)
        if self._watchdog is None and self._pid is not None:
            # The time that it has taken so far was for blocks that are answered.
            self._cpu_at_answer = processor_seconds(self._pid)
            self._watch()

    # --- what comes back --------------------------------------------------------------------

    def _read(self) -> bool:
        """Read the answers; return whether there was one."""
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
        # After a gap the rest of a line is left out as well.
        is_whole = block.content.endswith((b"\n", b"\r"))
        (self._halves.discard if is_whole else self._halves.add)(block.stream)
        for found in answer:
            self._on_match(found, block.beginning < self._beginnings)

    # --- what never comes back --------------------------------------------------------------

    def _watch(self) -> None:
        self._watchdog = self._loop.call_later(self.patience_seconds / 4, self._look)

    def _look(self) -> None:
        """
        See whether the helper is stuck.

        Judged by its processor time, because on a loaded machine the clock accuses the innocent.
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
        # The next one is not started here but when its end is heard, by when
        # its last answers are read.
        self._kill()

    def _ended(self, ended: Ended) -> None:
        # Its last answers may still be in the pipe.
        while self._read():
            pass
        self._pid = None
        left = self._leave_out_the_culprit()
        # Kept before _close(), which resets all of this and makes a new queue of open blocks.
        before, after = self._halves, self._gaps
        self._close()
        if self._is_invalid:
            return
        self._restarts += 1
        if self._restarts < self.most_restarts:
            self._start()
            self._hand_over_anew(left, before, after=after)
        elif self._restarts == self.most_restarts:
            self._start()
            self._gaps = set(range(STREAMS))
        else:
            self._on_problem(
                "ExpressionGivenUp",
                f"the helper that reads the log ended {self._restarts} times, last by {ended}; "
                "it is tried again at the next start",
            )

    def _leave_out_the_culprit(self) -> deque[_Block]:
        """Return what is still to be read, less that over which the helper has ended."""
        left = self._open
        if left and (left[0] is self._stuck or left[0].was_tried):
            self._halves.add(left.popleft().stream)
        elif left:
            left[0].was_tried = True
        return left

    def _hand_over_anew(self, left: deque[_Block], before: set[int], *, after: set[int]) -> None:
        """Let a new helper read what the last one has not answered, between what was left out."""
        if self._pid is None:
            return
        self._gaps = before
        for block in left:
            self._put(block)
        self._gaps |= after
        if left:
            self._send()


def processor_seconds(pid: int) -> float:
    """Return the processor time that a process has spent, or 0 where there is none."""
    try:
        fields = read_file(f"/proc/{pid}/stat").rpartition(b")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return 0.0
