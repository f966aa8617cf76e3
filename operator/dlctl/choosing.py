"""
Options that many verbs have, and which place they talk to.
"""

import os
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar

import click
from click.shell_completion import CompletionItem

from dlctl.backends import Backend, BackendError
from dlctl.jobviews import full_name
from dlctl.local_backend import LocalBackend
from dllocal.folders import Folders, default_root

Command = TypeVar("Command", bound=Callable[..., Any])


def choose(state: Path | None) -> Backend:
    """Find the place that is meant."""
    return LocalBackend(Folders(state or default_root(os.environ)).socket)


STATE_HELP = (
    "The state folder of the dljob up that is meant."
    "  [default: $DLJOB_STATE, or dljob in the folder for state of your user]"
)


def with_backend(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a verb the options that choose a place, and that place as its first argument."""

    @click.option(
        "--state", type=click.Path(path_type=Path, file_okay=False), metavar="DIR", help=STATE_HELP
    )
    @wraps(function)
    def chosen(*, state: Path | None, **given: Any) -> Any:
        return function(choose(state), **given)

    return chosen


def output_option(*formats: str, default: str = "") -> Callable[[Command], Command]:
    """``-o`` with these formats; without it people are told as people like it."""
    return click.option(
        "-o",
        "--output",
        type=click.Choice(formats),
        default=default or None,
        help="How it is printed; without it, for people.",
    )


def complete_jobs(
    ctx: click.Context,
    param: click.Parameter,  # noqa: ARG001 - as click calls it
    incomplete: str,
) -> list[CompletionItem]:
    """Complete the names of jobs. Where nobody answers there is nothing to complete."""
    try:
        items = choose(ctx.params.get("state")).list_jobs().items
    except BackendError:
        return []
    names = [full_name(document) for document in items]
    return [CompletionItem(name) for name in names if name.startswith(incomplete)]


def name_argument(*, several: bool = False, required: bool = True) -> Callable[[Command], Command]:
    """The names of jobs."""
    return click.argument(
        "names" if several else "name",
        nargs=-1 if several else 1,
        required=required,
        metavar=("NAME…" if required else "[NAME…]") if several else "NAME",
        shell_complete=complete_jobs,
    )
