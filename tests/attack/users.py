"""
Two users of one machine, with real user numbers: one has a ``dljob up``, the other wants to command or read it.

As root only, because only root can be two users.
"""

import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dllocal.folders import Folders
from tests.attack.counts import Count, Size
from tests.local.ups import kill_all
from tests.local.users import User, find_python, made

LONGEST_S = 60.0
FALSE_SERVER = """
import os, socket, sys
door = socket.socket(socket.AF_UNIX)
door.bind(sys.argv[1])
os.chmod(sys.argv[1], 0o666)
door.listen()
open(sys.argv[2] + ".ready", "w").close()
while True:
    connection, _ = door.accept()
    with open(sys.argv[2], "ab") as heard:
        heard.write(connection.recv(65536))
"""
SPEAK = """
import socket, sys
door = socket.socket(socket.AF_UNIX)
door.connect(sys.argv[1])
door.sendall(b"GET /v1/jobs HTTP/1.1\\r\\nHost: localhost\\r\\nConnection: close\\r\\n\\r\\n")
sys.exit(0 if door.recv(100) else 1)
"""


def run(_size: Size) -> Count:
    """Let the one try everything on the other."""
    count, root = Count(), Path(tempfile.mkdtemp(prefix="dljob-users-"))
    root.chmod(0o755)
    try:
        python = find_python(root)
        with made(root, python, "owner", "thief") as (owner, thief):
            _attack(count, owner, thief, python)
    except pytest.skip.Exception as error:
        count.skipped = str(error)
    except (AssertionError, TimeoutError) as error:
        count.broken.append(f"after {count.tried}: {error}")
    finally:
        shutil.rmtree(root, ignore_errors=True)
    return count


def _attack(count: Count, owner: User, thief: User, python: Path) -> None:
    for state in (owner.home / "state", owner.home / ("deep" * 30)):
        with _serving(owner, state, python) as folders:
            _read_and_speak(count, thief, folders, python)
        _stand_in(count, owner, thief, folders, python)


@contextmanager
def _serving(owner: User, state: Path, python: Path) -> Iterator[Folders]:
    """Have a server of this user, and a job with a secret."""
    words = f"up --virtual-gpus 1 --state {state}"
    up = f"from dlctl.main import main; import sys; sys.argv[1:] = {words.split()!r}; main()"
    quiet = "start_new_session=True, stdout=-3, stderr=-3"
    begin = f"import subprocess; subprocess.Popen([{str(python)!r}, '-c', {up!r}], {quiet})"
    assert owner.run(python, "-c", begin).status == 0
    try:
        folders = Folders(state)
        _until(folders.socket.exists, f"no dljob up of {owner.name} answers")
        yield folders
        ended = owner.run(
            python, "-c", "from dlctl.main import main; main()", "down", "--state", state
        )
        assert ended.status == 0, ended.stderr
    finally:
        kill_all(state)


def _read_and_speak(count: Count, thief: User, folders: Folders, python: Path) -> None:
    spoken = thief.run(python, "-c", SPEAK, folders.socket)
    count.hold(true=spoken.status != 0, otherwise=f"{folders.socket} answers another user")
    for path in (folders.registry, folders.root / "jobs.db.journal", folders.log):
        read = thief.run("cat", path)
        count.hold(true=read.status != 0, otherwise=f"{path} can be read by another user")
    for folder in (folders.root, folders.sockets):
        listed = thief.run("ls", folder)
        count.hold(true=listed.status != 0, otherwise=f"{folder} can be listed by another user")
        moved = thief.run("mv", folder, f"{folder}.stolen")
        count.hold(true=moved.status != 0, otherwise=f"{folder} can be moved by another user")


def _stand_in(count: Count, owner: User, thief: User, folders: Folders, python: Path) -> None:
    """Let the thief serve where the owner's socket was, or would be looked for."""
    heard = thief.home / "heard"
    places = [folders.socket] if not folders.socket.is_relative_to(owner.home) else []
    # A folder of the thief, to which something leads the owner.
    false = thief.home / "state" / "run" / "dljob.sock"
    thief.home.chmod(0o755)
    for path in (false, *places):
        thief.run("mkdir", "-p", path.parent)
        with _false_server(thief, path, heard, python):
            state = path.parents[1] if path == false else folders.root
            command = f"import sys; sys.argv[1:] = ['get', '--state', {str(state)!r}]"
            asked = owner.run(python, "-c", f"{command}; from dlctl.main import main; main()")
            is_silent = not heard.exists() or not heard.read_bytes()
            count.hold(
                true=is_silent and asked.status != 0,
                otherwise=f"something was sent to a server of another user at {path}",
            )


@contextmanager
def _false_server(thief: User, path: Path, heard: Path, python: Path) -> Iterator[None]:
    begin = (
        "import subprocess, sys; subprocess.Popen([sys.executable, '-c', sys.argv[1], *sys.argv[2:]],"
        " start_new_session=True, stdout=-3, stderr=-3)"
    )
    ready = heard.with_name("heard.ready")
    ready.unlink(missing_ok=True)
    assert thief.run(python, "-c", begin, FALSE_SERVER, path, heard).status == 0
    try:
        _until(ready.exists, "the false server does not begin")
        yield
    finally:
        kill_all(heard)
        path.unlink(missing_ok=True)


def _until(true: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + LONGEST_S
    while not true():
        if time.monotonic() > end:
            raise TimeoutError(what)
        time.sleep(0.05)
