"""Annotations of nodes that list GPUs out of service, changed concurrently with other writers."""

from collections.abc import Callable, Mapping
from typing import Final

from dljob.client.backend import Conflict, NotThere
from dljob.client.cluster.asking import Asker
from dljob.client.cluster.reading.operators import Operator
from dljob.kube.resources import NODES

ATTEMPTS: Final = 5
"""The number of attempts when other programs change the node meanwhile."""

Said = Callable[[str], dict[str, str]]
"""Reads the entries of an annotation by GPU number."""
Change = Callable[[Said], Mapping[str, Mapping[str, str]]]
"""Returns the new contents of the annotations."""


def change_gpu(asker: Asker, operator: Operator, node: str, *, gpu: int, change: Change) -> None:
    """Change the annotations of a node about its GPUs."""
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
    from dljob.client.cluster.reading import gpus  # noqa: PLC0415 - it loads much that other verbs need not

    try:
        document = asker.ask(lambda api: api.get(NODES, node))
    except NotThere as error:
        raise NotThere(f"{node}: there is no such node; dljob gpu list shows all nodes") from error
    gpus.insist_on_gpu(document, gpu, pool=operator.pool())
    wanted = change(lambda name: gpus.read_numbered(document, name))
    if any(gpus.read_numbered(document, name) != said for name, said in wanted.items()):
        written = gpus.write_numbered(document, wanted)
        asker.ask(lambda api: api.merge(NODES, node, changes=written))
