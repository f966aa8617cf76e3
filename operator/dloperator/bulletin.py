"""
What the operator alone knows of GPUs, for people to see: their UUIDs, and why some are given to nobody.

It stands in a ConfigMap beside the one about settings, and is written anew when it has changed.
``dljob gpu list`` reads it. What is known of broken GPUs stands there as well, in the words of
:mod:`dlcontrol.health`, and the operator that leads next begins with it.
"""

import asyncio
import json
import logging
from collections.abc import Mapping
from typing import Any, Final

from dlcontrol.loop import Controller
from dlcontrol.scene import Scene
from dlcore.model import GpuRef, Node, NodeName
from dloperator import names
from dloperator.apiserver import ApiServer, NotFound, Rejected, Unreachable
from dloperator.resources import CONFIGMAPS

log = logging.getLogger(__name__)

LOOK_S: Final = 2.0


class Bulletin:
    """One for the life of a leader; :meth:`run` is its own task."""

    def __init__(self, api: ApiServer, namespace: str, controller: Controller) -> None:
        self._api = api
        self._namespace = namespace
        self._controller = controller
        self._told: Mapping[str, str] = {}
        self._complaint = ""

    async def recall(self) -> None:
        """Have the controller know what the former one knew; raises if nobody can be asked."""
        try:
            found = await self._api.get(CONFIGMAPS, names.GPUS, self._namespace)
            data = found.get("data") or {}
            text = data.get(names.FAULTS_KEY)
            if text:
                self._controller.health.restore(json.loads(text))
            self._controller.identities.restore(read_numbers(data.get(names.GPUS_KEY) or "{}"))
        except NotFound:
            return
        except Unreachable:
            raise
        except Exception as error:  # noqa: BLE001 - people may write there what they like
            log.warning(
                "what the former operator knew of GPUs cannot be read, and is found anew: %s", error
            )

    async def run(self) -> None:
        """Tell whatever is new, for ever."""
        while True:
            scene = self._controller.scene
            if scene is not None:
                faults = json.dumps(self._controller.health.write())
                told = write(scene, self._controller.faults)
                await self._tell({names.GPUS_KEY: told, names.FAULTS_KEY: faults})
            await asyncio.sleep(LOOK_S)

    async def _tell(self, data: Mapping[str, str]) -> None:
        if data == self._told:
            return
        document = {"metadata": {"name": names.GPUS, "namespace": self._namespace}, "data": data}
        try:
            await self._api.apply(CONFIGMAPS, document, self._namespace)
        except (Rejected, Unreachable) as error:
            if str(error) != self._complaint:
                log.warning("dljob gpu list cannot tell what is known of GPUs: %s", error)
            self._complaint = str(error)
        else:
            self._told, self._complaint = data, ""


def write(scene: Scene, faults: Mapping[GpuRef, str]) -> str:
    """Write what there is to say of each node, as JSON."""
    told = {name: _describe(node, faults) for name, node in sorted(scene.nodes.items())}
    return json.dumps({name: each for name, each in told.items() if each}, ensure_ascii=False)


def read_numbers(text: str) -> dict[NodeName, dict[int, str]]:
    """Read the UUIDs of nodes by the numbers of their GPUs; raises what it raises if that cannot be read."""
    return {
        NodeName(name): {int(number): str(uuid) for number, uuid in told["uuids"].items()}
        for name, told in json.loads(text).items()
        if "uuids" in told
    }


def _describe(node: Node, faults: Mapping[GpuRef, str]) -> dict[str, Any]:
    out = {str(g.index): g.unavailable_because for g in node.gpus if g.unavailable_because}
    uuids = {str(gpu.index): gpu.uuid for gpu in node.gpus if gpu.uuid}
    broken = {str(ref.number): why for ref, why in faults.items() if ref.node == node.name}
    told = (("uuids", uuids), ("out", out), ("faults", broken))
    return {key: value for key, value in told if value}
