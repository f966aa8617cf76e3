"""Every verb is found where it is listed, tells its own help, and loads no more than it needs."""

import json
import os
import subprocess
import sys

import click
import pytest

from dljob.cli.main import cli
from dljob.cli.verb_list import list_sections
from dljob.cli.verbs.server.up import MECHANISMS
from dljob.core.model import Mechanism
from tests.ctl.running import LONGEST_S

NAMES = [name for verbs in list_sections().values() for name in verbs]


def walk(command, path=()):
    yield path, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            yield from walk(command.get_command(context, name), (*path, name))


def test_the_help_lists_every_verb_under_its_name(dljob):
    text = dljob("--help").stdout
    for verbs in list_sections().values():
        for name, about in verbs.items():
            assert any(line.split(maxsplit=1) == [name, about] for line in text.splitlines())
            assert about.endswith(".")


def test_every_verb_and_option_has_help(dljob):
    for path, command in walk(cli):
        result = dljob(*path, "--help")
        assert (result.status, result.stderr) == (0, ""), path
        assert command.help, path
        for option in command.params:
            if isinstance(option, click.Option) and option.name not in UNSAID:
                assert option.help, (path, option.name)


def test_up_offers_every_mechanism():
    assert list(MECHANISMS) == [each.value for each in Mechanism]


UNSAID = {"reason", "seed", "version"}


HEAVY = {"aiohttp", "matplotlib", "numpy", "pymongo", "rich", "scipy", "yaml"}
"""Modules that take longer to load than a short command takes to answer."""


LIGHT = (
    *("get", "get -o wide", "get -o json", "describe a", "why a", "suspend a", "gpu list"),
    *("logs a", "config show", "--help", "completion bash"),
)
SCRIPT = """
import json, sys
from dljob.cli.main import run
for words in json.loads(sys.argv[1]):
    assert run(words.split()) == 0, words
    loaded = {name.partition(".")[0] for name in sys.modules}
    print(json.dumps(sorted(loaded)), file=sys.stderr)
"""


@pytest.mark.processes
@pytest.mark.story
def test_verbs_load_only_needed_modules(played):
    played.submit("a")
    played.do("give", "a", {"n1": (0,)})
    words = (*LIGHT, "get -o yaml", "top --once")
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, json.dumps(words)],
        capture_output=True,
        text=True,
        check=False,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(sys.path),
            "DLJOB_STATE": str(played.up.root),
        },
        timeout=LONGEST_S,
    )
    assert done.returncode == 0, done.stderr
    loaded = [HEAVY & set(json.loads(line)) for line in done.stderr.splitlines() if "[" in line]
    *light, with_yaml, at_last = loaded
    assert not any(light)
    assert (with_yaml, at_last) == ({"yaml"}, {"yaml", "rich"})
