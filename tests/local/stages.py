"""
A real server in front of a real list of jobs, and a scripted controller that a test plays.

It runs on an event loop of its own in a thread, so that the real command can speak to it.
"""

import asyncio
import itertools
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from dljob.control.deciding import snapshots
from dljob.control.recording.composing import compose
from dljob.control.settings import Settings, load_tree
from dljob.control.situation.dialer import Contact
from dljob.control.situation.job_pods import JobPod
from dljob.control.situation.ports import Pod, PodKey, PodPhase
from dljob.control.situation.scene import Scene
from dljob.control.situation.status import Booking, Status
from dljob.core import policies
from dljob.core.model import (
    Cause,
    CauseCode,
    Gpu,
    GpuRef,
    JobId,
    Node,
    NodeName,
    Phase,
    Placement,
    Snapshot,
)
from dljob.core.profiles import Costs, JobType, Profile, Speed
from dljob.core.recording.record import Header, Line, Record, Source
from dljob.local.api.serving import Server
from dljob.local.events import Events
from dljob.local.folders import Folders
from dljob.local.jobs.registry import Registry
from dljob.local.pods.logtimes import LogTimes
from dljob.local.server_parts import ServerParts
from dljob.local.state_folder import make_folders
from dljob.store.rows import RecordRow
from dljob.store.store import StoreUnavailableError
from dljob_wire.messages import Phase as SideCarPhase
from dljob_wire.messages import Progress, Shape, State
from tests.loops import close_loop

T = TypeVar("T")

LONGEST_S = 240.0
"""No law of ours: after this time something hangs."""

RESNET = JobType("resnet")
PROFILES = {RESNET: Profile(RESNET, {Shape(n, 1, ""): Speed(float(n) ** 0.8) for n in (1, 2, 4)})}


def job_document(name: str = "resnet", **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "dljob.io/v1alpha1",
        "kind": "DLJob",
        "metadata": {"name": name},
        "spec": {
            "gpus": {"options": [1, 2, 4]},
            "training": {"iterations": 1000},
            "profile": {"model": "resnet"},
            "progress": {"log": r"step (?P<iteration>\d+)"},
            # One without a checkpoint would keep the GPUs that it starts with.
            "checkpoint": {"trusted": True},
            "template": {"spec": {"containers": [{"name": "trainer", "command": ["sleep", "60"]}]}},
            **spec,
        },
    }


class Stage:
    """The parts behind the server. All code that touches them runs on the server's thread."""

    def __init__(self, root: Path, sizes: Mapping[str, int], policy: str) -> None:
        self.folders = Folders(root)
        make_folders(self.folders)
        self.registry = Registry.open(self.folders.registry)
        self.events = Events()
        self.nodes = tuple(
            Node(NodeName(name), tuple(Gpu(i, f"GPU-{name}-{i}") for i in range(size)))
            for name, size in sizes.items()
        )
        self.wakes = 0
        self.broken: set[GpuRef] = set()
        self.history: list[RecordRow] = []
        self.store_is_away = False
        self.has_looked = True
        self.job_pods: dict[JobId, dict[NodeName, JobPod]] = {}
        self.log_times = LogTimes()
        self.worths: dict[JobId, float] = {}
        self.live: dict[JobId, dict[str, Any]] = {}
        """The fields of jobs that the loop has seen by now and has not written yet."""
        self._scenes = itertools.count(1)
        self._scene: Scene | None = None
        self._scene_of: object = None
        self.parts = ServerParts(
            folders=self.folders,
            registry=self.registry,
            events=self.events,
            log_times=self.log_times,
            policy=policies.make(policy),
            scene=self.scene,
            snapshot=self.snapshot,
            worths=lambda: self.worths,
            wake=self._wake,
            reinstate=self._reinstate,
            history=self._read_history,
            record=self._read_record,
            settings=load_tree(Settings(), {"seed": 3}, file="settings.yaml").described,
            metrics=lambda: b"dljob_jobs 1\n",
            about=lambda: {"policy": policy},
        )

    # --- what the server asks

    def scene(self) -> Scene | None:
        if not self.has_looked:
            return None
        cordons = self.registry.cordons()
        # A scene depends on these parts; they are compared because the server asks for each job of
        # a long list.
        live = {job: dict(fields) for job, fields in self.live.items()}
        parts = (self.registry.entries, cordons, live, dict(self.job_pods))
        if self._scene is None or self._scene_of != parts:
            self._scene = self._make_scene(cordons)
            self._scene_of = parts
        return self._scene

    def _make_scene(self, cordons: Mapping[tuple[str, int], str]) -> Scene:
        nodes = {node.name: _cordoned(node, cordons) for node in self.nodes}
        entries = {
            job: replace(entry, status=replace(entry.status, **self.live.get(job, {})))
            for job, entry in self.registry.entries.items()
        }
        return Scene(now=time.time(), epoch=1, entries=entries, job_pods=self.job_pods, nodes=nodes)

    def snapshot(self, scene: Scene) -> Snapshot:
        return snapshots.take_snapshot(scene, profiles=PROFILES, costs=Costs())

    def _wake(self) -> None:
        self.wakes += 1

    def _reinstate(self, gpu: GpuRef) -> bool:
        was_broken = gpu in self.broken
        self.broken.discard(gpu)
        return was_broken

    def _read_history(self, job: JobId, limit: int) -> Sequence[RecordRow]:
        if self.store_is_away:
            raise StoreUnavailableError("mongodb://db", "does not answer", "start it")
        found = [entry for entry in self.history if entry.job == job]
        return sorted(found, key=lambda entry: entry.when, reverse=True)[:limit]

    def _read_record(self, since: float) -> Record:
        if self.store_is_away:
            raise StoreUnavailableError("mongodb://db", "does not answer", "start it")
        header = Header(source=Source.MACHINE, since=since, until=time.time())
        return compose(self.history, tuple(self.registry.entries.values()), header=header)

    # --- what a controller would do

    def keep(self, *lines: Line, epoch: int = 0) -> None:
        first = len(self.history)
        self.history += [
            RecordRow.of(line, f"{number:04}", epoch=epoch)
            for number, line in enumerate(lines, first)
        ]

    def record(self, name: str, **fields: Any) -> None:
        job = JobId(name)
        self.registry.record({job: replace(self.registry.entries[job].status, **fields)})

    def give(self, name: str, gpus: Mapping[str, Iterable[int]], **fields: Any) -> None:
        job = JobId(name)
        placement = Placement.of({NodeName(node): ids for node, ids in gpus.items()})
        status = self.registry.entries[job].status
        now = time.time()
        status = status.decided(placement, now=now, cause=Cause(CauseCode.IDLE_GPUS))
        fields = {
            "phase": Phase.RUNNING,
            "started_at": now,
            "message": f"starts on {placement.gpus} GPUs: these GPUs would be idle",
            **fields,
        }
        self.registry.record({job: replace(status.with_pods(placement.nodes, now), **fields)})
        self.job_pods[job] = {
            part.node: _seat(job, part.node, part.gpus, status) for part in placement.slices
        }

    def train(self, name: str, iteration: int, **fields: Any) -> None:
        """Let a job come on, as the loop sees it before it writes it."""
        self.live[JobId(name)] = {"iteration": iteration, "iterated_at": time.time(), **fields}

    def take(self, name: str, cause: CauseCode, **fields: Any) -> None:
        """Let a job wait for this reason, with nothing left of it anywhere."""
        job = JobId(name)
        status = self.registry.entries[job].status
        if status.placement is not None:
            status = status.decided(None, now=time.time())
        status = status.without_pods(pod.node for pod in status.pods)
        fields = {"phase": Phase.QUEUED, "cause": Cause(cause), "message": "waits", **fields}
        self.registry.record({job: replace(status, **fields)})
        self.job_pods.pop(job, None)


def _seat(job: JobId, node: NodeName, gpus: Sequence[int], status: Status) -> JobPod:
    key = PodKey(job, node)
    state = State(
        "first",
        1,
        SideCarPhase.RUNNING,
        released=False,
        epoch=1,
        generation=status.run_generation,
        held=tuple(map(str, gpus)),
        held_generation=status.run_generation,
        progress=Progress(begun=True),
    )
    contact = Contact(state, reachable=True, since=time.time(), first_seen=time.time())
    return JobPod(key, Booking(node, 1), Pod(key, PodPhase.UP), contact)


def _cordoned(node: Node, cordons: Mapping[tuple[str, int], str]) -> Node:
    return replace(
        node,
        gpus=tuple(
            replace(gpu, unavailable_because=cordons.get((node.name, gpu.index), ""))
            for gpu in node.gpus
        ),
    )


class Staged:
    def __init__(
        self, root: Path, sizes: Mapping[str, int], *, policy: str, metrics: str = ""
    ) -> None:
        self.root = root
        self._make = lambda: Stage(root, sizes, policy)
        self._metrics = metrics
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.stage: Stage | None = None
        self._error: BaseException | None = None

    def start(self) -> None:
        self._thread.start()
        assert self._ready.wait(LONGEST_S)
        if self._error is not None:
            raise self._error

    def do(self, action: Callable[[Stage], T]) -> T:
        """Do something on the thread of the server, as the controller would."""

        async def act() -> T:
            assert self.stage is not None
            return action(self.stage)

        return asyncio.run_coroutine_threadsafe(act(), self._loop).result(LONGEST_S)

    def until_submitted(self, name: str) -> None:
        """Wait until there is a job of this name; there is in the end, or the test fails."""
        end = time.monotonic() + LONGEST_S
        while not self.do(lambda stage: JobId(name) in stage.registry.entries):
            assert time.monotonic() < end, f"{name} is not submitted"
            time.sleep(0.02)

    def stop(self) -> None:
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._ending.set)
            self._thread.join(LONGEST_S)
            assert not self._thread.is_alive()

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._live())
        except BaseException as error:  # noqa: BLE001 - told by start()
            self._error = error
        finally:
            self._ready.set()
            close_loop(self._loop)

    async def _live(self) -> None:
        self._ending = asyncio.Event()
        self.stage = self._make()
        server = Server(self.stage.parts, metrics=self._metrics)
        try:
            await server.open()
            self._ready.set()
            await self._ending.wait()
        finally:
            await server.close()
            self.stage.registry.close()


@contextmanager
def staged(root: Path, *, policy: str = "adaptive", metrics: str = "", **sizes: int):
    """Play a ``dljob up`` with nodes of these sizes: ``staged(tmp_path, n1=4)``."""
    played = Staged(root, sizes or {"n1": 4}, policy=policy, metrics=metrics)
    played.start()
    try:
        yield played
    finally:
        played.stop()
