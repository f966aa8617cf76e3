"""The commands of the README work; tests/cluster/test_quickstart.py types those for a cluster."""

import re
import tempfile
from pathlib import Path

import pytest

from tests.scripts import loaded

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```sh\n(.*?)```", README, re.DOTALL)


def commands_of(first: str) -> list[str]:
    """List the commands of the block that begins with this one, without comments."""
    [block] = [block for block in BLOCKS if block.startswith(first)]
    lines = (line.partition(" #")[0].strip() for line in block.splitlines())
    return [line for line in lines if line]


def test_every_block_is_typed_by_a_test():
    typed = ("make demo", "source .venv/bin/activate", "helm install", "dljob compare")
    assert [next(each for each in typed if block.startswith(each)) for block in BLOCKS] == [*typed]


def test_the_targets_of_make_are_there():
    """`make test` runs this very test, and addons/lab/tests/test_demo.py runs `dljob demo`, of which `make demo` consists."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for command in commands_of("make demo"):
        assert re.search(rf"^{command.removeprefix('make ')}:", makefile, re.MULTILINE)


@pytest.mark.processes
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("first", ["source .venv/bin/activate", "dljob compare"])
def test_the_commands_work_in_a_clone(first):
    with loaded("first-hour") as module:
        # Short, because sockets lie below it.
        folder = Path(tempfile.mkdtemp(prefix="readme-"))
        clone, environment = module.prepare(folder, bounded=True)
        commands = [each for each in commands_of(first) if not each.startswith("source ")]
        with module.ending(folder, clone, environment):
            for command in commands:
                status, printed = module.type_command(command, clone, environment)
                assert status == 0, printed
