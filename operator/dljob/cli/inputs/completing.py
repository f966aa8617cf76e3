"""
Shell completion beyond verbs, options and the names of jobs: files, policies and GPUs.

Where the place is away there is nothing to complete, and nothing is said.
"""

from collections.abc import Iterable

import click
from click.shell_completion import CompletionItem

from dljob.cli.inputs.options import place_of
from dljob.client.backend import BackendError, Json
from dljob.client.places import opened


def complete_files(
    ctx: click.Context,  # noqa: ARG001 - as click calls it
    param: click.Parameter,  # noqa: ARG001 - as click calls it
    incomplete: str,
) -> list[CompletionItem]:
    return [CompletionItem(incomplete, type="file")]


def complete_policies(
    ctx: click.Context,
    param: click.Parameter,  # noqa: ARG001 - as click calls it
    incomplete: str,
) -> list[CompletionItem]:
    """Complete the name of a policy, or the path of a policy's file."""
    # Not at the top, because policies take long to load.
    from dljob.core import policies as offered  # noqa: PLC0415
    from dljob.sim import policies as played  # noqa: PLC0415

    names = offered.NAMES if ctx.info_name == "up" else played.NAMES
    named = _beginning(names, incomplete)
    return named or [CompletionItem(incomplete, type="file")]


def complete_gpus(
    ctx: click.Context,
    param: click.Parameter,  # noqa: ARG001 - as click calls it
    incomplete: str,
) -> list[CompletionItem]:
    """Complete GPUs as NODE/NUMBER."""
    return _beginning(_gpus_of(_list_nodes(ctx)), incomplete)


def complete_gpus_and_nodes(
    ctx: click.Context,
    param: click.Parameter,  # noqa: ARG001 - as click calls it
    incomplete: str,
) -> list[CompletionItem]:
    """Complete GPUs, and nodes, which are all of their GPUs."""
    nodes = _list_nodes(ctx)
    return _beginning([*(node["name"] for node in nodes), *_gpus_of(nodes)], incomplete)


def _list_nodes(ctx: click.Context) -> list[Json]:
    try:
        with opened(place_of(ctx.params)[0]) as backend:
            return backend.list_nodes()
    except (BackendError, click.UsageError):
        return []


def _gpus_of(nodes: Iterable[Json]) -> list[str]:
    return [f"{node['name']}/{gpu['index']}" for node in nodes for gpu in node["gpus"]]


def _beginning(words: Iterable[str], incomplete: str) -> list[CompletionItem]:
    return [CompletionItem(word) for word in words if word.startswith(incomplete)]
