"""
A ConfigMap with the profiles and the state of the policy.

``dljob submit --dry-run`` plans with it as the operator decides. The next leader takes from it the knowledge that its store lacks,
because the default store is a file that ends with the pod.
"""

import asyncio
import base64
import json
import logging
import time
import zlib
from collections.abc import Callable, Mapping
from typing import Any, Final, Self

from dljob.control.situation.scene import Scene
from dljob.core.documents.profilefile import parse_all, render_all
from dljob.core.model import JobId, Snapshot
from dljob.core.profiles import JobType, Profile
from dljob.kube import names
from dljob.kube.client import ApiServer, NotFound, Rejected
from dljob.kube.documents import Json
from dljob.kube.resources import CONFIGMAPS
from dljob.operator.reporting.configmap_writing import ConfigMapWriter
from dljob.store.store import Store, StoreError
from dljob_wire.problems import WrongDocument

log = logging.getLogger(__name__)

FAILURE: Final = (
    f"the ConfigMap {names.LEARNED} cannot be written, so plans rest on the speeds of running jobs, and the next"
    " leader learns speeds again"
)
LOOK_S: Final = 10.0
LONGEST_S: Final = 600.0
"""Speeds that are measured again and again and the memory of the policy change all the time; they alone are written
this often."""
SHARE: Final = 0.05
"""A speed that changes by more is written at the next look."""
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
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._writer = ConfigMapWriter(api, namespace, failure=FAILURE)
        self._scene = scene
        self._snapshot = snapshot
        self._policy = policy
        self._clock = clock
        self._decisions: Mapping[JobId, int] | None = None
        """The numbers of the latest decisions about all jobs when it was written last."""
        self._profiles: Mapping[JobType, Profile] = {}
        self._due_at = 0.0

    async def run(self) -> None:
        while True:
            pause, scene = LOOK_S, self._scene()
            if scene is not None:
                pause += await self._write(scene, self._snapshot(scene)) / BYTES_PER_S
            await asyncio.sleep(pause)

    async def _write(self, scene: Scene, snapshot: Snapshot) -> int:
        """Write the changes; return the number of bytes."""
        decisions = {job: entry.status.generation for job, entry in scene.entries.items()}
        if (
            decisions == self._decisions
            and not _is_news(self._profiles, snapshot.profiles)
            and self._clock() < self._due_at
        ):
            return 0
        # In a thread, because thousands of jobs are in the state.
        data = await asyncio.to_thread(self._render, snapshot)
        encoded = base64.b64encode(data).decode()
        if await self._writer.write(names.LEARNED, {"binaryData": {names.LEARNED_KEY: encoded}}):
            self._decisions, self._profiles = decisions, snapshot.profiles
            self._due_at = self._clock() + LONGEST_S
        return len(data)

    def _render(self, snapshot: Snapshot) -> bytes:
        # A type of one job has a name that no document may have.
        named = (each for each in snapshot.profiles.values() if not each.type.is_of_one_job)
        profiles, state = render_all(named), snapshot.policy_state
        known = {"policy": self._policy, "state": state} if isinstance(state, dict) else {}
        packed = (_pack(each) for each in ({"profiles": profiles, **known}, {"profiles": profiles}))
        # Without any of it a plan says so, which is better than knowledge of long ago.
        return next((each for each in packed if len(each) <= MOST_BYTES), _pack({}))


def _is_news(before: Mapping[JobType, Profile], now: Mapping[JobType, Profile]) -> bool:
    if before.keys() != now.keys():
        return True
    for kind, old in before.items():
        new = now[kind]
        if new is old:
            continue
        if old.speeds.keys() != new.speeds.keys() or old.costs != new.costs:
            return True
        speeds = ((old.speeds[shape][0], new.speeds[shape][0]) for shape in new.speeds)
        if any(abs(measured - shown) > SHARE * shown for shown, measured in speeds):
            return True
    return False


def _pack(document: object) -> bytes:
    return zlib.compress(json.dumps(document).encode())


def unpack(found: Json) -> dict[str, Any]:
    """Return the content of the ConfigMap; empty if it cannot be read."""
    try:
        packed = base64.b64decode(found["binaryData"][names.LEARNED_KEY])
        learned: dict[str, Any] = json.loads(zlib.decompress(packed))
    except (KeyError, ValueError, zlib.error):
        return {}
    return learned


# --- for the next leader ------------------------------------------------------------------


class Learned:
    """The knowledge that the former leader has published."""

    def __init__(self, content: Mapping[str, Any]) -> None:
        self._content = content
        self.profiles: tuple[Profile, ...] = ()
        try:
            self.profiles = parse_all(content["profiles"], source=names.LEARNED)
        except KeyError:
            pass
        except WrongDocument as error:
            log.warning("the knowledge of another version cannot be read: %s", error)

    @classmethod
    async def read(cls, api: ApiServer, namespace: str) -> Self:
        """Read the ConfigMap; raises :class:`Unreachable` or a passing :class:`Rejected`."""
        try:
            return cls(unpack(await api.get(CONFIGMAPS, names.LEARNED, namespace)))
        except NotFound:
            return cls({})
        except Rejected as error:
            if error.is_passing:
                raise
            log.warning(
                "the knowledge of the former leader may not be read, so speeds are measured again (%s); grant get on the"
                " ConfigMap %s",
                error,
                names.LEARNED,
            )
            return cls({})

    def complete(self, store: Store) -> None:
        """Write into a store the profiles that it lacks, or knew before the former leader led."""
        policy, state = self._content.get("policy"), self._content.get("state")
        try:
            known = store.profiles()
            newer = [
                profile
                for profile in self.profiles
                if not profile.type.is_of_one_job
                and (
                    (stored := known.get(profile.type)) is None
                    or _seen_at(profile) > _seen_at(stored.profile)
                )
            ]
            for profile in newer:
                store.change(profile.type, lambda _, new=profile: new)  # type: ignore[misc]
            if policy and (newer or policy not in store.policy_states()):
                store.keep_policy_state(str(policy), json.dumps(state))
        except StoreError as error:
            log.warning("the knowledge of the former leader stays in memory only: %s", error)


def _seen_at(profile: Profile | None) -> float:
    speeds = profile.speeds.values() if profile is not None else ()
    return max((speed.seen_at for speed in speeds), default=0.0)
