"""``dljob mcp``: the command; :mod:`dljob_mcp.serving` speaks with the agent."""

from pathlib import Path
from typing import Final

import click

from dljob.cli.inputs.options import with_place
from dljob.client.places import Place, decide

SKILL: Final = Path(__file__).with_name("skill.md")


@click.command("mcp")
@click.option(
    "--allow-changes",
    is_flag=True,
    help="Offer tools that submit, change, suspend, resume and cancel jobs, too.",
)
@click.option(
    "--traces",
    multiple=True,
    type=click.Path(path_type=Path, exists=True, file_okay=False, resolve_path=True),
    metavar="DIR",
    help="Let agents simulate the traces in DIR; may be given several times.  [default: the working directory]",
)
@click.option(
    "--skill",
    is_flag=True,
    help="Print the skill file for agents, which says when to use which tool, and end.",
)
@with_place
def command(*, place: Place, allow_changes: bool, traces: tuple[Path, ...], skill: bool) -> None:
    """
    Serve agents by the Model Context Protocol, on standard input and output.

    Agents can ask for jobs, the reason of their state, the queue, GPUs and logs, for the future if something
    were different, and for simulations. Without --allow-changes no tool changes anything. An
    agent's settings name the command:

    \b
    {"mcpServers": {"dljob": {"command": "dljob", "args": ["mcp"]}}}

    Which place is asked, this machine or a cluster, is decided when the command starts, and stays so.
    """
    if skill:
        click.echo(SKILL.read_text(encoding="utf-8"), nl=False)
        return
    chosen = decide(place)
    # A kubeconfig that cannot be used is refused now, and not with each call.
    chosen.open().close()
    from dljob_mcp.serving import Agents, serve  # noqa: PLC0415 - help and skill need no protocol

    folders = traces or (Path.cwd().resolve(),)
    serve(Agents(chosen, folders, allow_changes=allow_changes))
