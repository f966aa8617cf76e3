"""
A ConfigMap with the profiles and the state of the policy, from which ``dljob submit --dry-run`` plans as the operator decides.

The operator never reads it: the store keeps both.
"""

import asyncio
import base64
import json
import logging
import zlib
from collections.abc import Callable
from typing import Final

from dlcontrol.situation.scene import Scene
from dlcore.documents.profilefile import render_all
from dlcore.model import Snapshot
from dlcore.primitives.once_per_change import OncePerChange
from dlkube import names
from dlkube.client import ApiServer, Rejected, Unreachable
from dlkube.resources import CONFIGMAPS

log = logging.getLogger(__name__)

LOOK_S: Final = 10.0
BYTES_PER_S: Final = 10_000
"""etcd keeps each version for some minutes, so a large one is written more rarely."""
LEARNED: Final = "learned"
MOST_BYTES: Final = 700_000
"""Kubernetes stores at most 1 MiB in a ConfigMap. Above this size the state of the policy is left out, then the profiles."""


class LearnedConfigMap:
    """One for the life of a leader; :meth:`run` is its own task."""

    def __init__(
        self,
        api: ApiServer,
        namespace: str,
        *,
        scene: Callable[[], Scene | None],
        snapshot: Callable[[Scene], Snapshot],
        policy: str,
    ) -> None:
        self._api = api
        self._namespace = namespace
        self._scene = scene
        self._snapshot = snapshot
        self._policy = policy
        self._told = b""
        self._complaints: OncePerChange[str] = OncePerChange()

    async def run(self) -> None:
        while True:
            scene = self._scene()
            if scene is not None:
                # In a thread, because thousands of jobs are in the state.
                data = await asyncio.to_thread(self._write, self._snapshot(scene))
                if data != self._told:
                    await self._tell(data)
            await asyncio.sleep(LOOK_S + len(self._told) / BYTES_PER_S)

    def _write(self, snapshot: Snapshot) -> bytes:
        profiles, state = render_all(snapshot.profiles.values()), snapshot.policy_state
        known = {"policy": self._policy, "state": state} if isinstance(state, dict) else {}
        packed = (_pack(each) for each in ({"profiles": profiles, **known}, {"profiles": profiles}))
        # Without any of it a plan says so, which is better than knowledge of long ago.
        return next((each for each in packed if len(each) <= MOST_BYTES), _pack({}))

    async def _tell(self, data: bytes) -> None:
        document = {
            "metadata": {"name": names.LEARNED, "namespace": self._namespace},
            "binaryData": {names.LEARNED_KEY: base64.b64encode(data).decode()},
        }
        try:
            await self._api.apply(CONFIGMAPS, document, namespace=self._namespace)
        except (Rejected, Unreachable) as error:
            if self._complaints.note(LEARNED, error):
                log.warning(
                    "the ConfigMap %s cannot be written, so plans rest on the speeds of running jobs: %s",
                    names.LEARNED,
                    error,
                )
        else:
            self._told = data
            self._complaints.settle(LEARNED)


def _pack(document: object) -> bytes:
    return zlib.compress(json.dumps(document).encode())
