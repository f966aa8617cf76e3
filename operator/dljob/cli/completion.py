"""
``dljob completion``: what a shell needs to complete verbs, options and the names of jobs.
"""

import click
from click.shell_completion import get_completion_class

SHELLS = ("bash", "zsh", "fish")


@click.command("completion")
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def command(context: click.Context, *, shell: str) -> None:
    """
    Print what completes dljob in your shell, the names of jobs included.

    \b
    bash:  eval "$(dljob completion bash)"       in ~/.bashrc
    zsh:   eval "$(dljob completion zsh)"        in ~/.zshrc
    fish:  dljob completion fish > ~/.config/fish/completions/dljob.fish
    """
    kind = get_completion_class(shell)
    assert kind is not None
    root = context.find_root().command
    click.echo(kind(root, {}, "dljob", "_DLJOB_COMPLETE").source())
