"""What the command tells its user besides its data: on standard error, one line at a time."""

from collections.abc import Sequence

import click

INTERRUPTED = 130
"""The exit status of a command that was ended with Ctrl-C, as shells report it."""


def say(line: str) -> None:
    """Tell the user something that is not data."""
    click.echo(line, err=True)


MOST_LINES = 20
"""Of what is wrong with documents so much is told; of the rest, how much it is."""


def tell_lines(lines: Sequence[str], program: str | None = None) -> None:
    """Tell all that is wrong with something, as much of it as a person reads."""
    name = program or click.get_current_context().find_root().info_name
    for line in lines[:MOST_LINES]:
        say(f"{name}: {line}")
    if len(lines) > MOST_LINES:
        say(f"{name}: and {len(lines) - MOST_LINES} more problems; fix these first")


def complain(line: str) -> None:
    """Tell the user what went wrong, as everything is told that went wrong."""
    program = click.get_current_context().find_root().info_name
    say(f"{program}: {line}")
