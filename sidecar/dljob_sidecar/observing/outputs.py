"""
The output of the training: passed on unchanged, and copied to the reader of its progress.

In a container an :class:`OutputForwarder` moves bytes from a pipe to the SideCar's own output. It
reads no more than it can forward: if no program reads the SideCar's output, the training blocks in
its `write`, as it would without a SideCar. On one machine the training writes to a file, and a
:class:`~dljob_sidecar.observing.tailing.Tail` follows the file, and the training never waits.

Both live as long as the SideCar, so the output of one start follows the output of the previous one.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import os
import socket
import stat
import termios
from collections.abc import Callable

Problem = Callable[[str, str], None]

BLOCK = 65536
PIPE_CAPACITY = 1 << 20
F_SETPIPE_SZ = 1031


class OutputForwarder:
    """
    Moves the bytes of a pipe to an output of the SideCar, and passes them to ``copy``.

    The forwarder pauses when the pipe is empty, so a training that prints a thousand lines per
    second wakes the SideCar twenty times per second and not a thousand times.
    """

    rest_seconds = 0.05
    relief_seconds = 2.0

    def __init__(
        self,
        sink: int,
        *,
        copy: Callable[[bytes], None],
        on_problem: Problem,
        on_relief: Callable[[str], None],
    ) -> None:
        """Call ``on_problem`` with a name and a sentence, and ``on_relief`` with the name."""
        self._copy = copy
        self._on_problem = on_problem
        self._on_relief = on_relief
        self._loop = asyncio.get_running_loop()
        self._source, self.inlet = os.pipe()
        """``inlet`` becomes the output of a training process."""
        # A larger pipe reduces wake-ups; if it is not allowed, the default size works.
        with contextlib.suppress(OSError):
            fcntl.fcntl(self._source, F_SETPIPE_SZ, PIPE_CAPACITY)
        os.set_blocking(self._source, False)
        self._sink, self._write = open_sink(sink)
        self._pending = memoryview(b"")
        self._lost = ""
        self._lost_at = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._listen()

    # The forwarder listens to the source, pauses, or waits for the sink.

    def _listen(self) -> None:
        self._timer = None
        self._loop.add_reader(self._source, self._read)

    def _rest(self) -> None:
        self._loop.remove_reader(self._source)
        self._timer = self._loop.call_later(self.rest_seconds, self._listen)

    def wake(self) -> None:
        """End the pause."""
        if self._timer is not None:
            self._timer.cancel()
            self._listen()

    def read_now(self) -> None:
        """Forward the waiting output within this call, unless the sink would block."""
        # Read at most one pipe's capacity, because a busy writer could block the event loop.
        for _ in range(PIPE_CAPACITY // BLOCK):
            if self.is_empty or self._pending:
                return
            self.wake()
            self._read()

    def _read(self) -> None:
        try:
            block = os.read(self._source, BLOCK)
        except BlockingIOError:
            return
        # Copy first: a blocked sink delays the training, but not the reader of its progress.
        self._copy(block)
        self._pending = memoryview(block)
        if not self._flush():
            self._loop.remove_reader(self._source)
            self._loop.add_writer(self._sink, self._go_on)
        elif len(block) < BLOCK:
            self._rest()

    def _go_on(self) -> None:
        if self._flush():
            self._loop.remove_writer(self._sink)
            self._listen()

    def _flush(self) -> bool:
        """Return True if everything that was read is forwarded or dropped."""
        try:
            while self._pending:
                self._pending = self._pending[self._write(self._pending) :]
        except BlockingIOError:
            return False
        except OSError as error:
            self._lose(error)
        else:
            # Wait, because on a nearly full disk every other write may succeed.
            if self._lost and self._loop.time() - self._lost_at > self.relief_seconds:
                self._on_relief(self._lost)
                self._lost = ""
        return True

    def _lose(self, error: OSError) -> None:
        """Drop output that cannot be written, because a full disk must not end the training."""
        self._lost = "DiskFull" if error.errno in {errno.ENOSPC, errno.EDQUOT} else "OutputLost"
        self._lost_at = self._loop.time()
        self._on_problem(self._lost, f"output of the training is lost: {error.strerror}")
        self._pending = memoryview(b"")

    @property
    def is_empty(self) -> bool:
        waiting = fcntl.ioctl(self._source, termios.FIONREAD, bytes(4))
        return not self._pending and not any(waiting)

    def close(self) -> None:
        """Forward the waiting output without blocking, and close everything."""
        self._loop.remove_reader(self._source)
        self._loop.remove_writer(self._sink)
        if self._timer is not None:
            self._timer.cancel()
        with contextlib.suppress(OSError):
            # The loop ends with BlockingIOError, because the open `inlet` keeps the pipe from
            # ending.
            while self._flush():
                self._pending = memoryview(os.read(self._source, BLOCK))
        for descriptor in (self._source, self.inlet, self._sink):
            os.close(descriptor)


def open_sink(descriptor: int) -> tuple[int, Callable[[memoryview], int]]:
    """
    Return a descriptor for an output and a function that writes to it without blocking.

    The inherited descriptor is shared with other processes and must stay blocking.
    """
    kind = os.fstat(descriptor).st_mode
    if stat.S_ISSOCK(kind):
        ours = os.dup(descriptor)
        return ours, lambda data: _send(ours, data)
    if stat.S_ISFIFO(kind) or stat.S_ISCHR(kind):
        with contextlib.suppress(OSError):
            flags = os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
            ours = os.open(f"/proc/self/fd/{descriptor}", flags)
            return ours, lambda data: os.write(ours, data)
    # A regular file never blocks. Some pipes cannot be opened again (they may belong to another
    # user); a ready pipe accepts at least one page without blocking.
    ours = os.dup(descriptor)
    if stat.S_ISREG(kind):
        return ours, lambda data: os.write(ours, data)
    return ours, lambda data: _write_page(ours, data)


def _send(descriptor: int, data: memoryview) -> int:
    with socket.socket(fileno=os.dup(descriptor)) as connection:
        return connection.send(data, socket.MSG_DONTWAIT)


def _write_page(descriptor: int, data: memoryview) -> int:
    import select  # noqa: PLC0415 - hardly ever needed

    poll = select.poll()
    poll.register(descriptor, select.POLLOUT)
    if not poll.poll(0):
        raise BlockingIOError
    return os.write(descriptor, data[:4096])
