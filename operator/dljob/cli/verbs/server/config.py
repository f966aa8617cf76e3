"""
``dljob config show``: how the controller is set, and where each value came from.
"""

import click

from dljob.cli.inputs.options import output_option, with_backend
from dljob.cli.output import texts
from dljob.cli.output.forms import to_json, to_yaml
from dljob.client.backend import Backend, Json


@click.group("config")
def command() -> None:
    """
    Show the settings of the controller and their sources.
    """


@command.command("show")
@output_option("wide", "json", "yaml")
@with_backend
def show(backend: Backend, *, output: str | None) -> None:
    """
    List every setting with its value and where that came from.

    With -o yaml it is printed as a settings file; with -o wide each is explained.
    """
    settings = backend.list_settings()
    if output == "json":
        click.echo(to_json(settings), nl=False)
    elif output == "yaml":
        click.echo(to_yaml(_as_tree(settings)), nl=False)
    else:
        wide = output == "wide"
        header = ("SETTING", "VALUE", "FROM", *(("MEANING",) if wide else ()))
        rows = [_row(setting, wide=wide) for setting in settings]
        click.echo(texts.tabulate(header, rows), nl=False)


def _row(setting: Json, *, wide: bool) -> tuple[str, ...]:
    value = setting["value"]
    shown = str(value) if value not in ("", None) else texts.NOTHING
    row = (setting["name"], shown, setting["origin"])
    return (*row, " ".join(setting["description"].split())) if wide else row


def _as_tree(settings: list[Json]) -> Json:
    tree: Json = {}
    for setting in settings:
        *branches, leaf = setting["name"].split(".")
        place = tree
        for branch in branches:
            place = place.setdefault(branch, {})
        place[leaf] = setting["value"]
    return tree
