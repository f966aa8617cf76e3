"""
``dljob exec``: a command where a job has its GPUs.
"""

import click

from dljob.cli.inputs.options import name_argument, with_backend
from dljob.client.backend import Backend


@click.command("exec", context_settings={"ignore_unknown_options": True})
@name_argument()
@click.argument("words", nargs=-1, required=True, type=click.UNPROCESSED, metavar="-- COMMAND…")
@click.option("--node", default="", metavar="NODE", help="The node, where the job has several.")
@with_backend
def command(backend: Backend, *, name: str, words: tuple[str, ...], node: str) -> int:
    """
    Run a command with the GPUs visible that a job has now, in its environment and its folder.

    For example: dljob exec resnet18 -- nvidia-smi. The exit status is that of the command.
    """
    return backend.execute(name, words, node=node)
