"""Options and arguments that many verbs have: the place, the output format, names of jobs, numbers of GPUs."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar

import click
from click.shell_completion import CompletionItem

from dljob.cli.inputs.spans import read_begin
from dljob.client.backend import BackendError
from dljob.client.demands import read_counts
from dljob.client.places import Place, opened
from dljob.core.documents.jobnames import full_name

Command = TypeVar("Command", bound=Callable[..., Any])

STATE_HELP = (
    "The state folder of that dljob up.  [default: $DLJOB_STATE, or dljob in the folder for state"
    " of your user]"
)

KUBECONFIG = click.option(
    "--kubeconfig",
    default="",
    metavar="FILE",
    help="The kubeconfig of the cluster.  [default: as kubectl finds it]",
)
CONTEXT = click.option(
    "--context", default="", metavar="NAME", help="The context in the kubeconfig."
)
SINCE = click.option(
    "--since",
    callback=lambda _ctx, _param, text: 0.0 if text is None else read_begin(text),
    metavar="SPAN|TIME",
    help="The begin: a length of time before now (2h, 7d), or a time (2026-01-31T08:00). "
    " [default: the whole record]",
)
STORE = click.option(
    "--store",
    metavar="URL",
    help="Read the store itself instead of asking a controller: a file, or a mongodb:// address.",
)
STATE = click.option(
    "--state",
    # Users may pass through the folder of a server of all users, but not read it.
    type=click.Path(path_type=Path, file_okay=False, readable=False),
    metavar="DIR",
    help=STATE_HELP,
)
_OPTIONS = (
    STATE,
    KUBECONFIG,
    CONTEXT,
    click.option(
        "-n",
        "--namespace",
        default="",
        metavar="NAME",
        help="The namespace in the cluster.  [default: that of the context]",
    ),
)
_EVERYWHERE = click.option(
    "-A", "--all-namespaces", "everywhere", is_flag=True, help="The jobs of all namespaces."
)


def with_backend(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a verb the options that choose a place, and that place as its first argument."""
    return _chosen(function, _OPTIONS)


def with_wide_backend(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a verb that lists jobs the option for all namespaces, too."""
    return _chosen(function, (*_OPTIONS, _EVERYWHERE))


def with_place(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a verb the options that choose a place, as the argument ``place``."""

    @wraps(function)
    def chosen(**given: Any) -> Any:
        place, rest = place_of(given)
        return function(place=place, **rest)

    for option in reversed((*_OPTIONS, _EVERYWHERE)):
        chosen = option(chosen)
    return chosen


def _chosen(function: Callable[..., Any], options: Sequence[Command]) -> Callable[..., Any]:
    @wraps(function)
    def chosen(**given: Any) -> Any:
        place, rest = place_of(given)
        with opened(place) as backend:
            return function(backend, **rest)

    for option in reversed(options):
        chosen = option(chosen)
    return chosen


def place_of(given: Mapping[str, Any]) -> tuple[Place, dict[str, Any]]:
    """Split the options of a verb into the place and the verb's own."""
    named = {each.name for each in fields(Place)}
    said = {name: value for name, value in given.items() if name in named}
    return Place(**said), {name: value for name, value in given.items() if name not in named}


def output_option(*formats: str, default: str = "") -> Callable[[Command], Command]:
    """``-o`` with these formats; without it the output is for people."""
    return click.option(
        "-o",
        "--output",
        type=click.Choice(formats),
        default=default or None,
        help="The output format; without it, text for people.",
    )


def complete_jobs(
    ctx: click.Context,
    param: click.Parameter,  # noqa: ARG001 - as click calls it
    incomplete: str,
) -> list[CompletionItem]:
    """Complete the names of jobs; without a server there are none."""
    try:
        with opened(place_of(ctx.params)[0]) as backend:
            items, home = backend.list_jobs().items, backend.home
    except (BackendError, click.UsageError):
        return []
    names = [full_name(document, home) for document in items]
    return [CompletionItem(name) for name in names if name.startswith(incomplete)]


def name_argument(*, several: bool = False, required: bool = True) -> Callable[[Command], Command]:
    return click.argument(
        "names" if several else "name",
        nargs=-1 if several else 1,
        required=required,
        metavar=("NAME…" if required else "[NAME…]") if several else "NAME",
        shell_complete=complete_jobs,
        callback=lambda _ctx, _param, typed: (
            read_name(typed) if isinstance(typed, str) else tuple(map(read_name, typed))
        ),
    )


RESOURCES = ("dljob.dljob.io/", "dljobs.dljob.io/")
"""The prefixes that ``get -o name`` and kubectl print before a name. No namespace has dots."""


def read_name(typed: str) -> str:
    """Strip the prefix of a job's name, as ``get -o name`` prints it."""
    for resource in RESOURCES:
        if typed.startswith(resource):
            return typed.removeprefix(resource)
    return typed


def gpu_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a verb the options that :class:`Demand` holds: ``counts``, ``least`` and ``most``."""
    for option in reversed(
        (
            click.option(
                *("--gpus", "--options", "counts"),
                callback=lambda _ctx, _param, text: None if text is None else read_counts(text),
                metavar="COUNTS",
                help="The number of GPUs: 4, or one of 1,2,4, or any of 1-4.",
            ),
            click.option(
                *("--min-gpus", "least"),
                type=click.IntRange(1),
                metavar="N",
                help="On at least N GPUs.",
            ),
            click.option(
                *("--max-gpus", "most"),
                type=click.IntRange(1),
                metavar="N",
                help="On at most N GPUs.",
            ),
        )
    ):
        function = option(function)
    return function
