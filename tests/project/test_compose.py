"""``compose.yaml``: it starts existing programs, and only this machine reaches its page."""

import click
import yaml

from dljob.cli.main import cli
from tests.sidecar.drivers import ROOT

COMPOSE = yaml.safe_load((ROOT / "compose.yaml").read_text(encoding="utf-8"))
[SERVICE] = COMPOSE["services"].values()


def parse(words):
    """Return the options of a verb as click reads them; raises where it refuses them."""
    verb, *options = words
    command = cli.get_command(click.Context(cli), verb)
    assert command is not None
    context = click.Context(command)
    command.parse_args(context, options)
    return context.params


def test_the_verb_and_its_options_are_there():
    assert SERVICE["entrypoint"] == ["dljob"]
    [virtual] = parse(SERVICE["command"])["virtual_gpus"]
    assert virtual.gpus == 8
    dljob, *healthy = SERVICE["healthcheck"]["test"][1:]
    assert dljob == "dljob"
    parse(healthy)


def test_only_this_machine_reaches_the_page():
    port = parse(SERVICE["command"])["page"].rpartition(":")[2]
    assert SERVICE["ports"] == [f"127.0.0.1:{port}:{port}"]


def test_the_image_is_the_operators():
    dockerfile = (ROOT / SERVICE["build"]["dockerfile"]).read_text(encoding="utf-8")
    assert "USER 65532" in dockerfile
    assert SERVICE["cap_drop"] == ["ALL"]


def test_example_data_is_mounted_read_only():
    for volume in SERVICE["volumes"]:
        source, place, mode = volume.split(":")
        assert (ROOT / source).is_dir()
        assert place == f"{SERVICE['working_dir']}/{source.removeprefix('./')}"
        assert mode == "ro"
