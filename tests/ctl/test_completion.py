"""
Shells complete names of jobs, files and policies: typed at a terminal, in the installed shells.
"""

import os
import pty
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

LONGEST_S = 240.0
"""Each completion starts the command, which takes its time where all cores are busy."""

STARTS = {
    "bash": ["bash", "--norc", "--noprofile", "-i"],
    "zsh": ["zsh", "--no-rcs", "-i"],
    "fish": ["fish", "--no-config", "--interactive"],
}
SETTINGS = {
    "bash": 'eval "$(dljob completion bash)"',
    "zsh": 'autoload -U compinit; compinit -u; eval "$(dljob completion zsh)"',
    "fish": "dljob completion fish | source",
}
pytestmark = pytest.mark.processes

CLEAR = "\x15"
"""Ctrl-U forgets what is typed."""


class Shell:
    """A shell at a terminal of its own."""

    def __init__(self, words: list[str], folder: Path, environment: dict[str, str]) -> None:
        self._leader, follower = pty.openpty()
        self._process = subprocess.Popen(
            # The terminal is its own, without which fish ends at once.
            ["setsid", "--ctty", *words],
            stdin=follower,
            stdout=follower,
            stderr=follower,
            cwd=folder,
            env=environment,
        )
        os.close(follower)
        self._seen = ""

    def close(self) -> None:
        self._process.kill()
        self._process.wait(60)
        os.close(self._leader)

    def type(self, text: str, until: str) -> None:
        """Type this; what is shown afterwards has that in it in the end, or the test fails."""
        self._seen = ""
        os.write(self._leader, text.encode())
        end = time.monotonic() + LONGEST_S
        while until not in self._seen:
            left = max(0.0, end - time.monotonic())
            assert select.select([self._leader], [], [], left)[0], self._seen
            self._seen += os.read(self._leader, 65536).decode(errors="replace")


@pytest.fixture
def command(tmp_path):
    """The command on a path of its own, as an installation puts it there."""
    folder = tmp_path / "bin"
    folder.mkdir()
    program = folder / "dljob"
    program.write_text(
        f"#!{sys.executable}\nimport sys\nsys.argv[0] = 'dljob'\n"
        "from dlctl.main import main\nmain()\n",
        encoding="utf-8",
    )
    program.chmod(0o755)
    return folder


@pytest.mark.parametrize("name", STARTS)
def test_a_shell_completes_jobs_files_policies_and_verbs(name, command, played, tmp_path):
    if shutil.which(name) is None:
        pytest.skip(f"{name} is not installed")
    played.submit("resnet-a")
    (tmp_path / "workload.csv").touch()
    shell = Shell(
        STARTS[name],
        tmp_path,
        {
            "PATH": os.pathsep.join([str(command), os.environ["PATH"]]),
            "PYTHONPATH": os.pathsep.join(sys.path),
            "HOME": str(tmp_path),
            "TERM": "dumb",
            "DLJOB_STATE": str(played.up.root),
        },
    )
    try:
        shell.type(f"{SETTINGS[name]}; echo set''-up\n", "set-up")
        for typed, completed in {
            "dljob susp": "end",
            "dljob why resn": "et-a",
            "dljob submit workl": "oad.csv",
            "dljob simulate --policy foresi": "ght",
        }.items():
            # The shell shows what is typed, and behind that what it adds.
            shell.type(f"{typed}\t", completed)
            shell.type(CLEAR, "")
    finally:
        shell.close()
