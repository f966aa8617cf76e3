"""Every verb is found where it is listed, tells its own help, and loads no more than it needs."""

import json
import os
import subprocess
import sys
from importlib import import_module

import click
import pytest

from dlctl.main import cli
from dlctl.verb_list import VERBS

NAMES = [name for verbs in VERBS.values() for name in verbs]


def walk(command, path=()):
    """Every command that there is, with its path."""
    yield path, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            yield from walk(command.get_command(context, name), (*path, name))


COMMANDS = dict(walk(cli))


def test_the_help_lists_every_verb_under_its_name(dljob):
    text = dljob("--help").stdout
    for verbs in VERBS.values():
        for name, verb in verbs.items():
            assert any(line.split(maxsplit=1) == [name, verb.help] for line in text.splitlines())
            assert verb.help.endswith(".")


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_every_verb_tells_what_it_does_and_what_each_option_is_for(dljob, path):
    result = dljob(*path, "--help")
    assert (result.status, result.stderr) == (0, "")
    command = COMMANDS[path]
    assert command.help
    for option in command.params:
        if isinstance(option, click.Option) and option.name not in ("reason", "seed", "version"):
            assert option.help, option.name


def test_a_verb_that_there_is_not_is_told_with_the_nearest(dljob):
    result = dljob("sumbit")
    assert result.status == 2
    assert "submit" in result.stderr


HEAVY = {"aiohttp", "matplotlib", "numpy", "pymongo", "rich", "scipy", "yaml"}
"""Modules that take longer to load than a short command takes to answer."""


@pytest.mark.parametrize(
    ("words", "allowed"),
    [
        (["get"], set()),
        (["get", "-o", "wide"], set()),
        (["get", "-o", "json"], set()),
        (["describe", "a"], set()),
        (["why", "a"], set()),
        (["suspend", "a"], set()),
        (["gpu", "list"], set()),
        (["logs", "a"], set()),
        (["exec", "a", "--", "true"], set()),
        (["config", "show"], set()),
        (["--help"], set()),
        (["completion", "bash"], set()),
        (["get", "-o", "yaml"], {"yaml"}),
        (["top", "--once"], {"rich"}),
    ],
    ids=lambda words: " ".join(words) if isinstance(words, list) else "",
)
def test_no_verb_loads_what_it_does_not_need(played, words, allowed):
    played.submit("a")
    played.do("give", "a", {"n1": (0,)})
    script = (
        "import json, sys; from dlctl.main import run; status = run(sys.argv[1:]);"
        "print(json.dumps([status, sorted(m.split('.')[0] for m in sys.modules)]), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, *words],
        capture_output=True,
        text=True,
        check=False,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(sys.path),
            "DLJOB_STATE": str(played.up.root),
        },
    )
    status, modules = json.loads(done.stderr.splitlines()[-1])
    assert status == 0, done.stderr
    assert HEAVY & set(modules) == allowed


def test_every_verb_is_a_module_of_its_family():
    for verbs in VERBS.values():
        for verb in verbs.values():
            module, _, attribute = verb.module.partition(":")
            assert hasattr(import_module(f"dlctl.{module}"), attribute or "command")
