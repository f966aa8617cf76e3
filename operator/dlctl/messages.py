"""What the command tells its user besides its data: on standard error, one line at a time."""

import click


def say(line: str) -> None:
    """Tell the user something that is not data."""
    click.echo(line, err=True)
