"""Messages to the user on standard error, one line each."""

import click

INTERRUPTED = 130
"""The exit status after Ctrl-C, as shells report it."""


def say(line: str) -> None:
    click.echo(line, err=True)


MOST_LINES = 20
"""The number of problems that are printed; the rest is counted."""


def complain(line: str) -> None:
    """Print an error in the common form."""
    program = click.get_current_context().find_root().info_name
    say(f"{program}: {line}")
