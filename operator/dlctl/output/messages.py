"""Messages of the command to its user, apart from its data: on standard error, one line at a time."""

from collections.abc import Sequence

import click

INTERRUPTED = 130
"""The exit status of a command that was ended with Ctrl-C, as shells report it."""


def say(line: str) -> None:
    """Tell the user something that is not data."""
    click.echo(line, err=True)


MOST_LINES = 20
"""The number of problems of documents that are printed; the rest is only counted."""


def tell_lines(lines: Sequence[str], program: str) -> None:
    """Print problems, as many as a person reads."""
    for line in lines[:MOST_LINES]:
        say(f"{program}: {line}")
    if len(lines) > MOST_LINES:
        say(f"{program}: and {len(lines) - MOST_LINES} more problems; fix these first")


def complain(line: str) -> None:
    """Report an error to the user, in the same form as all errors."""
    program = click.get_current_context().find_root().info_name
    say(f"{program}: {line}")
