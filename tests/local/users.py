"""Real users of this machine, made for a test and removed after it, and commands that they type."""

import os
import pwd
import shutil
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

import dljob.cli
from dljob.local.folders import find_closed
from tests.ctl.running import LONGEST_S, Result

SCRIPT = "from dljob.cli.main import main; main()"


class User:
    def __init__(self, name: str, python: Path, state: Path) -> None:
        entry = pwd.getpwnam(name)
        self.name, self.uid, self.gid = name, entry.pw_uid, entry.pw_gid
        self.home = Path(entry.pw_dir)
        self.python = python
        self._state = state

    def start(self, *command: object, **variables: str) -> subprocess.Popen[str]:
        environment = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": str(self.home)}
        return subprocess.Popen(
            ["/usr/bin/env", "-C", str(self.home), *map(str, command)],
            user=self.uid,
            group=self.gid,
            extra_groups=[] if self.uid else None,
            env={**environment, "USER": self.name, "LANG": "C.UTF-8", **variables},
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *command: object, **variables: str) -> Result:
        with self.start(*command, **variables) as process:
            try:
                told, said = process.communicate(timeout=LONGEST_S)
            finally:
                process.kill()
        return Result(process.returncode, told, said)

    def type(self, *words: object) -> list[object]:
        """Return the command; options come before what follows ``--``."""
        place = words.index("--") if "--" in words else len(words)
        return [
            *(self.python, "-c", SCRIPT, *words[:place]),
            *("--state", self._state, *words[place:]),
        ]

    def __call__(self, *words: object, **variables: str) -> Result:
        return self.run(*self.type(*words), **variables)

    def submit(self, document: Mapping[str, Any], **variables: str) -> Result:
        file = self.home / "job.yaml"
        file.write_text(yaml.safe_dump(dict(document)))
        return self("submit", file, **variables)


@contextmanager
def made(state: Path, python: Path, *names: str) -> Iterator[list[User]]:
    """Make users, each with a home, and remove them with all that is theirs."""
    with ExitStack() as stack:
        yield [stack.enter_context(_made(state, python, name)) for name in names]


@contextmanager
def _made(state: Path, python: Path, name: str) -> Iterator[User]:
    own = f"{name}-{uuid.uuid4().hex[:6]}"
    home = Path(tempfile.mkdtemp(prefix=f"{own}-"))
    subprocess.run(
        ["useradd", "--no-create-home", "--home-dir", home, own], check=True, timeout=LONGEST_S
    )
    try:
        user = User(own, python, state)
        os.chown(home, user.uid, user.gid)
        yield user
    finally:
        # Processes of this user prevent the removal; no other account has the number.
        subprocess.run(
            ["userdel", "--force", own], check=False, capture_output=True, timeout=LONGEST_S
        )
        shutil.rmtree(home, ignore_errors=True)


def find_python(folder: Path) -> Path:
    """Return an interpreter with DLJob that all users can run, made in this folder if need be."""
    if os.getuid() != 0:
        pytest.skip("only root can make users, and run jobs as them")
    if shutil.which("useradd") is None:
        pytest.skip("there is no useradd here")
    closed = find_closed(Path(dljob.cli.__file__))
    if closed is not None:
        pytest.skip(f"{closed} is closed to other users, so that they cannot run dljob")
    if find_closed(Path(sys.executable)) is None:
        return Path(sys.executable)
    return make_python(folder)


def make_python(folder: Path) -> Path:
    system = Path("/usr/bin/python3")
    told = "import sys; print('%d.%d' % sys.version_info[:2])"
    ours = f"{sys.version_info[0]}.{sys.version_info[1]}"
    found = subprocess.run(
        [system, "-c", told], capture_output=True, text=True, check=False, timeout=LONGEST_S
    )
    if found.stdout.strip() != ours:
        pytest.skip(f"there is no Python {ours} here that other users can run")
    command = [str(system), "-m", "venv", "--without-pip", str(folder / "venv")]
    subprocess.run(command, check=True, timeout=LONGEST_S)
    packages = folder / "venv" / "lib" / f"python{ours}" / "site-packages"
    (packages / "dljob.pth").write_text("".join(f"{each}\n" for each in sys.path if each))
    return folder / "venv" / "bin" / "python"
