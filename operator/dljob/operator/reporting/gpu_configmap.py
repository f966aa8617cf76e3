"""
ConfigMaps with the state of GPUs that only the operator knows: UUIDs, and why jobs do not get some GPUs.

``dljob gpu list`` reads them. A large cluster needs several, each with a part of the nodes, and only those that have
changed are written. The first one also holds the faults of GPUs, from which the next leader starts.
"""

import asyncio
import contextlib
import json
import logging
import zlib
from collections.abc import Mapping
from typing import Final

from dljob.control.loop import Controller
from dljob.control.situation.scene import Scene
from dljob.core.model import GpuRef, Node, NodeName
from dljob.kube import names
from dljob.kube.client import ApiServer, NotFound, Rejected, Unreachable
from dljob.kube.resources import CONFIGMAPS
from dljob.operator.reporting.configmap_writing import ConfigMapWriter

log = logging.getLogger(__name__)

LOOK_S: Final = 2.0
FAILURE: Final = "the ConfigMaps of GPUs cannot be written, so dljob gpu list shows an older state"
MOST_BYTES: Final = 400_000
"""The average size of a ConfigMap above which there are more; Kubernetes stores at most 1 MiB in one."""


class GpuConfigMap:
    """One for the life of a leader; :meth:`run` is its own task."""

    def __init__(self, api: ApiServer, namespace: str, *, controller: Controller) -> None:
        self._api = api
        self._namespace = namespace
        self._controller = controller
        self._table = Table()
        self._writer = ConfigMapWriter(api, namespace, failure=FAILURE)
        self._may_write = True

    async def recall(self) -> None:
        """
        Hand the state of the previous operator to the controller.

        Raises :class:`Unreachable` or :class:`Rejected` if that has to be tried again, because :meth:`run`
        overwrites the state.
        """
        try:
            found = await self._api.get(CONFIGMAPS, names.GPUS, self._namespace)
            data = found.get("data") or {}
            text = data.get(names.FAULTS_KEY)
            if text:
                self._controller.observer.gpu_faults.restore(json.loads(text))
            numbers = read_numbers(data.get(names.GPUS_KEY) or "{}")
            for name in names.GPUS_PARTS[1 : int(data.get(names.GPUS_PARTS_KEY, "1"))]:
                # The other parts count although one was deleted.
                with contextlib.suppress(NotFound):
                    part = await self._api.get(CONFIGMAPS, name, self._namespace)
                    numbers |= read_numbers(part["data"][names.GPUS_KEY])
            self._controller.observer.gpu_uuids.restore(numbers)
        except NotFound:
            return
        except Unreachable:
            raise
        except Rejected as error:
            if error.is_passing:
                raise
            # The rights are not those of the manifests. Without the state of the previous operator this
            # one knows fewer faults, and must not replace the recorded ones.
            self._may_write = False
            log.warning(
                "the GPU state of the previous operator may not be read, and so is not replaced, which leaves"
                " dljob gpu list as it is (%s); grant get on the ConfigMaps %s* and restart the operator",
                error,
                names.GPUS,
            )
        except Exception as error:  # noqa: BLE001 - users may have written anything there
            log.warning(
                "the GPU state of the previous operator cannot be read; SideCars will report it again: %s",
                error,
            )

    async def run(self) -> None:
        while True:
            scene = self._controller.scene
            if scene is not None and self._may_write:
                # There is no await before the first write, so all parts are of one cycle.
                faults = json.dumps(self._controller.observer.gpu_faults.write())
                parts = split(self._table.write(scene, self._controller.observer.faults))
                index = {names.GPUS_PARTS_KEY: str(len(parts)), names.FAULTS_KEY: faults}
                written = [{names.GPUS_KEY: text} for text in parts]
                written[0] |= index
                # The first part comes last, so that its reader finds all others.
                for name, data in reversed(list(zip(names.GPUS_PARTS, written, strict=False))):
                    await self._writer.write(name, {"data": data})
            await asyncio.sleep(LOOK_S)


class Table:
    """The text about each node, kept until the node changes."""

    def __init__(self) -> None:
        self._known: dict[NodeName, tuple[Node, Mapping[str, str], str]] = {}

    def write(self, scene: Scene, faults: Mapping[GpuRef, str]) -> dict[str, str]:
        """Return the nodes with a fault or a UUID as JSON."""
        by_node: dict[NodeName, dict[str, str]] = {}
        for ref, why in faults.items():
            by_node.setdefault(ref.node, {})[str(ref.number)] = why
        known, self._known = self._known, {}
        for name, node in sorted(scene.nodes.items()):
            broken = by_node.get(name, {})
            before = known.get(name)
            if before is not None and before[0] is node and before[1] == broken:
                self._known[name] = before
            else:
                self._known[name] = (node, broken, _describe(node, broken))
        return {name: text for name, (_, _, text) in self._known.items() if text}


def read_numbers(text: str) -> dict[NodeName, dict[int, str]]:
    """Read the UUIDs of GPUs by node and number; raises any exception if that cannot be read."""
    return {
        NodeName(name): {int(number): str(uuid) for number, uuid in node["uuids"].items()}
        for name, node in json.loads(text).items()
        if "uuids" in node
    }


def split(nodes: Mapping[str, str]) -> list[str]:
    """
    Pack the texts about nodes into as few parts as possible.

    The name of a node decides its part, so that a change of one node changes one part.
    """
    size = sum(len(name) + len(text.encode()) + len('"": , ') for name, text in nodes.items())
    count = 1
    while count < len(names.GPUS_PARTS) and size > count * MOST_BYTES:
        count *= 2
    parts: list[list[str]] = [[] for _ in range(count)]
    for name, text in nodes.items():
        parts[zlib.crc32(name.encode()) % count].append(f"{json.dumps(name)}: {text}")
    return [f"{{{', '.join(part)}}}" for part in parts]


def _describe(node: Node, broken: Mapping[str, str]) -> str:
    out = {str(g.index): g.unavailable_because for g in node.gpus if g.unavailable_because}
    uuids = {str(gpu.index): gpu.uuid for gpu in node.gpus if gpu.uuid}
    parts = (("uuids", uuids), ("out", out), ("faults", broken))
    shown = {key: value for key, value in parts if value}
    return json.dumps(shown, ensure_ascii=False) if shown else ""
