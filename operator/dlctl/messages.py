"""What the command tells its user besides its data: on standard error, one line at a time."""

import click

INTERRUPTED = 130
"""The exit status of a command that was ended with Ctrl-C, as shells report it."""


def say(line: str) -> None:
    """Tell the user something that is not data."""
    click.echo(line, err=True)


def complain(line: str) -> None:
    """Tell the user what went wrong, as everything is told that went wrong."""
    program = click.get_current_context().find_root().info_name
    say(f"{program}: {line}")
