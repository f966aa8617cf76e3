"""
A command of another user, run by root, without a way into root's terminal.

``dljob exec`` of root runs a command as the user whose job it is. If it had root's terminal, it could type there
(``TIOCSTI``), and go on reading what root types after it has ended. So it gets a session of its own and, where
root's end is a terminal, a terminal of its own that ends with it; what is typed and printed is passed on.
"""

import contextlib
import fcntl
import os
import select
import signal
import subprocess
import sys
import termios
import tty
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, Final

BLOCK: Final = 1 << 14
LOOK_S: Final = 0.2
"""The interval of checks for the end of the command while its children are silent."""


def run(command: Sequence[str], **options: Any) -> int:
    """Run a command to its end with options of :class:`subprocess.Popen`; return its exit status."""
    ours = [stream.fileno() for stream in (sys.stdin, sys.stdout, sys.stderr)]
    shown = [descriptor for descriptor in ours if os.isatty(descriptor)]
    if not shown:
        return subprocess.run(  # noqa: S603 - it is what the user has asked for
            command, start_new_session=True, check=False, **options
        ).returncode
    leader, follower = os.openpty()
    try:
        os.fchown(follower, options.get("user", -1), -1)
        _copy_size(shown[0], leader)
        given = [follower if each in shown else each for each in ours]
        process = _start(command, given, follower, options)
        os.close(follower)
        follower = -1
        with _raw(ours[0]) if ours[0] in shown else contextlib.nullcontext():
            return _pass_on(process, leader, shown=shown, reads=ours[0] in shown)
    finally:
        for descriptor in (leader, follower):
            if descriptor >= 0:
                os.close(descriptor)


def _start(
    command: Sequence[str], given: Sequence[int], terminal: int, options: dict[str, Any]
) -> subprocess.Popen[bytes]:
    return subprocess.Popen(  # noqa: S603 - it is what the user has asked for
        command,
        stdin=given[0],
        stdout=given[1],
        stderr=given[2],
        start_new_session=True,
        # Only the leader of a new session can take a terminal, so it cannot be done out here. Nothing
        # else of this process runs at the same time that could hold a lock across the fork.
        preexec_fn=partial(fcntl.ioctl, terminal, termios.TIOCSCTTY, 0),  # noqa: PLW1509
        pass_fds=[terminal],
        **options,
    )


def _pass_on(
    process: subprocess.Popen[bytes], leader: int, *, shown: Sequence[int], reads: bool
) -> int:
    keys, sources = sys.stdin.fileno(), [leader]
    if reads:
        sources.append(keys)
    before = signal.signal(signal.SIGWINCH, lambda *_: _copy_size(shown[0], leader))
    try:
        while _look(process, leader, shown[-1], sources):
            continue
    finally:
        signal.signal(signal.SIGWINCH, before)
    return process.wait()


def _look(process: subprocess.Popen[bytes], leader: int, out: int, sources: list[int]) -> bool:
    """Pass on waiting data; return whether the command may write more."""
    # Asked before the terminal is looked at: what the command prints right before its end is still read.
    has_ended = process.poll() is not None
    ready = select.select(sources, [], [], 0 if has_ended else LOOK_S)[0]
    for keys in set(ready) - {leader}:
        if not _copy(keys, leader):
            sources.remove(keys)
    if leader in ready:
        return _copy(leader, out)
    return not has_ended


def _copy(source: int, sink: int) -> bool:
    """Pass on the waiting data; return whether there may be more."""
    try:
        block = os.read(source, BLOCK)
    except OSError:
        return False  # The last process has closed its terminal.
    while block:
        block = block[os.write(sink, block) :]
        if not block:
            return True
    return False


def _copy_size(source: int, sink: int) -> None:
    with contextlib.suppress(OSError):
        fcntl.ioctl(sink, termios.TIOCSWINSZ, fcntl.ioctl(source, termios.TIOCGWINSZ, bytes(8)))


@contextlib.contextmanager
def _raw(keys: int) -> Iterator[None]:
    """Pass keys on as they are typed, also Ctrl-C, which is for the command."""
    before = termios.tcgetattr(keys)
    tty.setraw(keys, termios.TCSADRAIN)
    try:
        yield
    finally:
        termios.tcsetattr(keys, termios.TCSADRAIN, before)
