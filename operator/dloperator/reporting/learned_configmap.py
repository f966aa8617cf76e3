"""
A ConfigMap with the profiles and the state of the policy, from which ``dljob submit --dry-run`` plans as the operator decides.

The operator never reads it: the store keeps both.
"""

import asyncio
import base64
import json
import zlib
from collections.abc import Callable
from typing import Final

from dlcontrol.situation.scene import Scene
from dlcore.documents.profilefile import render_all
from dlcore.model import Snapshot
from dlkube import names
from dlkube.client import ApiServer
from dloperator.reporting.configmap_writing import ConfigMapWriter

FAILURE: Final = (
    f"the ConfigMap {names.LEARNED} cannot be written, so plans rest on the speeds of running jobs"
)
LOOK_S: Final = 10.0
BYTES_PER_S: Final = 10_000
"""etcd keeps each version for some minutes, so a large one is written more rarely."""
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
        self._writer = ConfigMapWriter(api, namespace, failure=FAILURE)
        self._scene = scene
        self._snapshot = snapshot
        self._policy = policy

    async def run(self) -> None:
        while True:
            pause, scene = LOOK_S, self._scene()
            if scene is not None:
                # In a thread, because thousands of jobs are in the state.
                data = await asyncio.to_thread(self._write, self._snapshot(scene))
                encoded = base64.b64encode(data).decode()
                await self._writer.write(
                    names.LEARNED, {"binaryData": {names.LEARNED_KEY: encoded}}
                )
                pause += len(data) / BYTES_PER_S
            await asyncio.sleep(pause)

    def _write(self, snapshot: Snapshot) -> bytes:
        # A type of one job has a name that no document may have.
        named = (each for each in snapshot.profiles.values() if not each.type.is_of_one_job)
        profiles, state = render_all(named), snapshot.policy_state
        known = {"policy": self._policy, "state": state} if isinstance(state, dict) else {}
        packed = (_pack(each) for each in ({"profiles": profiles, **known}, {"profiles": profiles}))
        # Without any of it a plan says so, which is better than knowledge of long ago.
        return next((each for each in packed if len(each) <= MOST_BYTES), _pack({}))


def _pack(document: object) -> bytes:
    return zlib.compress(json.dumps(document).encode())
