"""
The output of each process on a shared node, with the rank before each line.

Each process has its own pipe. A :class:`RankOutputForwarder` moves its complete lines to the common
output, each after ``rank 3 | ``. It writes only complete lines, and to a pipe at most the size that
the kernel writes atomically, so lines of two ranks never mix. A process alone gets no prefix.

A line that is too long is cut. Progress bars end their lines with a carriage return.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Sequence

from dljob_sidecar.observing.outputs import BLOCK, OutputForwarder

LONGEST_LINE = 4000
AT_ONCE = 4096
"""The number of bytes that the kernel writes to a pipe atomically (PIPE_BUF)."""
LINE = re.compile(rb"[^\r\n]*(?:\r\n|\n|\r)")


class RankOutputForwarder(OutputForwarder):
    """Moves the lines of one process to the common output, and closes after its last writer."""

    def __init__(
        self,
        sink: int,
        *,
        on_problem: Callable[[str, str], None],
        on_relief: Callable[[str], None],
        on_end: Callable[[RankOutputForwarder], None],
    ) -> None:
        self._has_ended = False
        # The common output copies the block.
        super().__init__(sink, copy=lambda _: None, on_problem=on_problem, on_relief=on_relief)
        self._on_end = on_end
        self._prefix = b""
        self._begun = b""
        """The current incomplete line."""
        self._write_some = self._write
        self._write = self._write_lines

    def sign(self, rank: int) -> None:
        """Begin each line with this rank from now on."""
        self._prefix = b"rank %d | " % rank

    def let_go(self) -> None:
        """Close the SideCar's writing end, so the end of all writers is noticed."""
        os.close(self.inlet)
        self.inlet = -1

    def _write_lines(self, data: memoryview) -> int:
        chunk = bytes(data[:AT_ONCE])
        if len(data) > AT_ONCE:
            end = max(chunk.rfind(b"\n"), chunk.rfind(b"\r")) + 1
            chunk = chunk[: end or AT_ONCE]
        return self._write_some(memoryview(chunk))

    def _listen(self) -> None:
        if self._has_ended:
            self.close()
            self._on_end(self)
            return
        super()._listen()

    def _read(self) -> None:
        try:
            block = os.read(self._source, BLOCK)
        except BlockingIOError:
            return
        self._has_ended = not block
        self._pending = memoryview(self._take(block))
        if not self._flush():
            self._loop.remove_reader(self._source)
            self._loop.add_writer(self._sink, self._go_on)
        elif self._has_ended:
            self._listen()
        elif len(block) < BLOCK:
            self._rest()

    def _take(self, block: bytes) -> bytes:
        """Return the complete lines with the rank; at the end, also the rest."""
        data = self._begun + block
        if not self._prefix:
            self._begun = b""
            return data
        end = data.rfind(b"\n") + 1
        # A carriage return at the very end may be half of a line break.
        end = max(end, data.rfind(b"\r", end, len(data) - 1) + 1)
        # Search complete lines only, because a search without a match takes quadratic time.
        lines, rest = LINE.findall(data[:end]), data[end:]
        while len(rest) > LONGEST_LINE:
            lines.append(rest[:LONGEST_LINE] + b"\n")
            rest = rest[LONGEST_LINE:]
        if rest and not block:
            lines.append(rest + b"\n")
            rest = b""
        self._begun = rest
        return b"".join(self._prefix + piece for line in lines for piece in _iter_pieces(line))

    def close(self) -> None:
        """Forward the rest without waiting, and close everything."""
        self._loop.remove_reader(self._source)
        self._loop.remove_writer(self._sink)
        if self._timer is not None:
            self._timer.cancel()
        with contextlib.suppress(OSError):
            while not self._has_ended and self._flush():
                block = os.read(self._source, BLOCK)
                self._has_ended = not block
                self._pending = memoryview(self._take(block))
        if self._flush():
            self._pending = memoryview(self._take(b""))
            self._flush()
        for descriptor in (self._source, self.inlet, self._sink):
            if descriptor >= 0:
                os.close(descriptor)


class ProcessOutput:
    def __init__(
        self, descriptors: tuple[int, int], forwarders: tuple[RankOutputForwarder, ...] = ()
    ) -> None:
        self.descriptors = descriptors
        self._forwarders = forwarders

    def sign(self, rank: int | None) -> None:
        """Begin each line with this rank; ``None`` for a process that is alone in its job."""
        for forwarder in self._forwarders:
            if rank is not None:
                forwarder.sign(rank)

    def let_go(self) -> None:
        """Close the ends that the process has inherited."""
        for forwarder in self._forwarders:
            forwarder.let_go()


class Outputs:
    """The common output, and the outputs of the processes that write to it."""

    def __init__(
        self,
        common: tuple[int, int],
        *,
        by_rank: bool,
        passed: Sequence[int] = (),
        on_problem: Callable[[str, str], None] = lambda _, __: None,
        on_relief: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.common = common
        self.passed = passed
        """Further descriptors that the processes inherit."""
        self._by_rank = by_rank
        self._on_problem = on_problem
        self._on_relief = on_relief
        self.forwarders: list[RankOutputForwarder] = []
        """Forwarders with processes that may still write."""

    def open(self, *, is_alone: bool = False) -> ProcessOutput:
        """Return the output of a process that is about to start."""
        if is_alone or not self._by_rank:
            return ProcessOutput(self.common)
        forwarders = {sink: self._make_forwarder(sink) for sink in dict.fromkeys(self.common)}
        self.forwarders += forwarders.values()
        out, err = self.common
        return ProcessOutput(
            (forwarders[out].inlet, forwarders[err].inlet), tuple(forwarders.values())
        )

    def _make_forwarder(self, sink: int) -> RankOutputForwarder:
        return RankOutputForwarder(
            sink,
            on_problem=self._on_problem,
            on_relief=self._on_relief,
            on_end=self.forwarders.remove,
        )

    def close(self) -> None:
        for forwarder in self.forwarders:
            forwarder.close()
        self.forwarders.clear()


def _iter_pieces(line: bytes) -> list[bytes]:
    """Split a line that is too long into lines."""
    if len(line) <= LONGEST_LINE:
        return [line]
    pieces = [line[at : at + LONGEST_LINE] for at in range(0, len(line), LONGEST_LINE)]
    return [piece + b"\n" for piece in pieces[:-1]] + pieces[-1:]
