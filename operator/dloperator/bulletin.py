"""
What the operator alone knows of GPUs, for people to see: their UUIDs, and why some are given to nobody.

It stands in a ConfigMap beside the one about settings, and is written anew when it has changed.
``dljob gpu list`` reads it. Nothing is decided by it.
"""

import asyncio
import json
import logging
from collections.abc import Callable
from typing import Any, Final

from dlcontrol.scene import Scene
from dlcore.model import Node
from dloperator import names
from dloperator.apiserver import ApiServer, Rejected, Unreachable
from dloperator.resources import CONFIGMAPS

log = logging.getLogger(__name__)

LOOK_S: Final = 2.0


class Bulletin:
    """One for the life of a leader; :meth:`run` is its own task."""

    def __init__(self, api: ApiServer, namespace: str, scene: Callable[[], Scene | None]) -> None:
        self._api = api
        self._namespace = namespace
        self._scene = scene
        self._told = ""
        self._complaint = ""

    async def run(self) -> None:
        """Tell whatever is new, for ever."""
        while True:
            scene = self._scene()
            if scene is not None:
                await self._tell(write(scene))
            await asyncio.sleep(LOOK_S)

    async def _tell(self, text: str) -> None:
        if text == self._told:
            return
        document = {
            "metadata": {"name": names.GPUS, "namespace": self._namespace},
            "data": {names.GPUS_KEY: text},
        }
        try:
            await self._api.apply(CONFIGMAPS, document, self._namespace)
        except (Rejected, Unreachable) as error:
            if str(error) != self._complaint:
                log.warning("dljob gpu list cannot tell what is known of GPUs: %s", error)
            self._complaint = str(error)
        else:
            self._told, self._complaint = text, ""


def write(scene: Scene) -> str:
    """Write what there is to say of each node, as JSON."""
    told = {name: _describe(node) for name, node in sorted(scene.nodes.items())}
    return json.dumps({name: each for name, each in told.items() if each}, ensure_ascii=False)


def _describe(node: Node) -> dict[str, Any]:
    out = {str(g.index): g.unavailable_because for g in node.gpus if g.unavailable_because}
    uuids = {str(gpu.index): gpu.uuid for gpu in node.gpus if gpu.uuid}
    return {key: value for key, value in (("uuids", uuids), ("out", out)) if value}
