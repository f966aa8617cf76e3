"""Annotations of nodes that say which GPUs are out of service, changed beside other writers."""

from collections.abc import Callable, Mapping
from typing import Final

from dlclient.backend import Conflict, NotThere
from dlclient.cluster.asking import Asker
from dlclient.cluster.reading.operators import Operator
from dlkube.resources import NODES

ATTEMPTS: Final = 5
"""How often the change of a node is retried after a conflict with another program."""

Said = Callable[[str], dict[str, str]]
"""Returns the entries of a node's annotation about GPUs, by their numbers."""
Change = Callable[[Said], Mapping[str, Mapping[str, str]]]
"""Makes the new contents of annotations from it."""


def change_gpu(asker: Asker, operator: Operator, node: str, *, gpu: int, change: Change) -> None:
    """Change what annotations of a node say of its GPUs."""
    for _ in range(ATTEMPTS - 1):
        try:
            _try_to_change_gpu(asker, operator, node, gpu=gpu, change=change)
        except Conflict:
            # The operator or another user wrote the node at the same time: read it again.
            continue
        return
    _try_to_change_gpu(asker, operator, node, gpu=gpu, change=change)


def _try_to_change_gpu(
    asker: Asker, operator: Operator, node: str, *, gpu: int, change: Change
) -> None:
    from dlclient.cluster.reading import gpus  # noqa: PLC0415 - it loads much that other verbs need not

    try:
        document = asker.ask(lambda api: api.get(NODES, node))
    except NotThere as error:
        raise NotThere(f"{node}: there is no such node; dljob gpu list shows all nodes") from error
    gpus.insist_on_gpu(document, gpu, pool=operator.pool())
    wanted = change(lambda name: gpus.read_numbered(document, name))
    if any(gpus.read_numbered(document, name) != said for name, said in wanted.items()):
        written = gpus.write_numbered(document, wanted)
        asker.ask(lambda api: api.merge(NODES, node, changes=written))
