"""A command that root runs as another user has no way into root's terminal."""

import os
from pathlib import Path

import pytest

from tests.ctl.terminals import Terminal

pytestmark = [
    pytest.mark.skipif(os.getuid() != 0, reason="only root runs commands as other users"),
    pytest.mark.processes,
]

NOBODY = 65534
LEGACY = Path("/proc/sys/dev/tty/legacy_tiocsti")
TYPES = "import fcntl, termios; [fcntl.ioctl(1, termios.TIOCSTI, c.encode()) for c in 'id\\n']"
"""Types a command at the terminal that it prints to, as if its user had."""
IN_A_TERMINAL = """
import os, select, signal, subprocess, sys
# A shell ignores Ctrl-C in what it runs in the background, such as these tests.
signal.signal(signal.SIGINT, signal.default_int_handler)
from dljob.client.local import own_terminal
copy = own_terminal._copy
def copy_late(source, sink):
    # As on a busy machine: the command answers a key and ends before the next look.
    more = copy(source, sink)
    if source == 0:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
    return more
if sys.argv[1] == "late":
    own_terminal._copy = copy_late
run = own_terminal.run if sys.argv[1] in ("own", "late") else lambda *a, **o: subprocess.run(*a, **o).returncode
status = run(sys.argv[2:], user=65534, group=65534, extra_groups=[], cwd="/")
typed = select.select([0], [], [], 0)[0]
print("status", status, "typed" if typed else "clean")
"""


def run_at_a_terminal(way: str, *command: str, keys: str = "") -> str:
    """Run a command of another user in a terminal of root's, and return all that this shows."""
    with Terminal(way, *command, cwd=Path("/"), script=IN_A_TERMINAL) as terminal:
        if keys:
            terminal.until("ready")
            terminal.type(keys)
        terminal.until("typed", "clean")
        return terminal.seen


@pytest.mark.story
def test_typed_text_stays_off_the_terminal_of_root():
    python = "/usr/bin/python3"
    if LEGACY.exists() and LEGACY.read_text().strip() == "1":
        # The attack works on a kernel that permits it: root's shell would run this text.
        assert "typed" in run_at_a_terminal("shared", python, "-c", TYPES)
    assert "status 0 clean" in run_at_a_terminal("own", python, "-c", TYPES)


@pytest.mark.story
def test_it_has_a_terminal_with_keys_signals_and_an_exit_status():
    script = (
        "test -t 0 && test -t 1 && id -u; stty size; echo ready; read line; echo got $line; exit 3"
    )
    seen = run_at_a_terminal("own", "/bin/sh", "-c", script, keys="hello\n")
    assert f"{NOBODY}\r\n" in seen
    assert "got hello" in seen
    assert "status 3 clean" in seen
    # No shell: it may catch Ctrl-C and forget it while it starts the next command.
    waits = "import signal, time; signal.signal(2, signal.SIG_DFL); print('ready', flush=True); time.sleep(600)"
    seen = run_at_a_terminal("own", "/usr/bin/python3", "-c", waits, keys="\x03")
    assert "status -2 clean" in seen
    seen = run_at_a_terminal("own", "/bin/sh", "-c", "sleep 600 & exit 4")
    assert "status 4 clean" in seen


def test_last_output_is_shown_and_nothing_is_left():
    seen = run_at_a_terminal(
        "late", "/bin/sh", "-c", "echo ready; read line; echo got $line; exit 3", keys="hello\n"
    )
    assert "got hello" in seen
    assert "status 3 clean" in seen
    # What it leaves behind would take the line that root types after the command has ended.
    script = "(read line; echo stolen $line) </dev/tty & exit 0"
    assert "status 0 clean" in run_at_a_terminal("own", "/bin/sh", "-c", script)
