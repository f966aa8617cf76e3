"""
Shells complete names of jobs, files and policies: typed at a terminal, in the installed shells.
"""

import os
import sys

import pytest

from addons.web.tests.browsers import find_program
from tests.ctl.terminals import Terminal

pytestmark = pytest.mark.processes

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


@pytest.fixture
def command(tmp_path):
    """The command on a path of its own, as an installation puts it there."""
    folder = tmp_path / "bin"
    folder.mkdir()
    program = folder / "dljob"
    program.write_text(
        f"#!{sys.executable}\nimport sys\nsys.argv[0] = 'dljob'\n"
        "from dljob.cli.main import main\nmain()\n",
        encoding="utf-8",
    )
    program.chmod(0o755)
    return folder


@pytest.mark.parametrize("name", STARTS)
def test_a_shell_completes_jobs_files_policies_and_verbs(name, command, played, tmp_path):
    find_program(name)
    played.submit("resnet-a")
    (tmp_path / "workload.csv").touch()
    with Terminal(
        # The terminal is its own, without which fish ends at once.
        words=["setsid", "--ctty", *STARTS[name]],
        cwd=tmp_path,
        PATH=os.pathsep.join([str(command), os.environ["PATH"]]),
        HOME=str(tmp_path),
        TERM="dumb",
        DLJOB_STATE=str(played.up.root),
    ) as shell:
        shell.type(f"{SETTINGS[name]}; echo set''-up\n")
        shell.until("set-up")
        for typed, completed in {
            "dljob susp": "end",
            "dljob why resn": "et-a",
            "dljob submit workl": "oad.csv",
            "dljob simulate --policy foresi": "ght",
        }.items():
            # The shell shows what is typed, and behind that what it adds.
            shell.seen = ""
            shell.type(f"{typed}\t")
            shell.until(completed)
            shell.type(CLEAR)
