"""
The platform of one machine: jobs in a file, pods as processes, GPUs real or virtual.

Implements :class:`dlcontrol.situation.ports.Platform` out of :mod:`dllocal.jobs.registry` and
:mod:`dllocal.pods.processes`.
"""

import socket
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

from dlcontrol.situation.ports import (
    NotKept,
    Observation,
    PodKey,
    PodOrder,
)
from dlcontrol.situation.status import Status
from dlcore.model import JobId, Node
from dllocal.events import Events
from dllocal.folders import Folders
from dllocal.jobs.registry import Registry, why_not_written
from dllocal.pods.processes import Pods

FIRST_PORT, LAST_PORT = 20000, 29999
"""Where processes of a job meet; outside of what the kernel hands out by itself."""

HOST = "127.0.0.1"


class Machine:
    """One machine, or several virtual nodes on it."""

    def __init__(
        self,
        folders: Folders,
        registry: Registry,
        *,
        pods: Pods,
        nodes: Callable[[], tuple[Node, ...]],
        events: Events,
    ) -> None:
        self._folders = folders
        self._registry = registry
        self._pods = pods
        self._nodes = nodes
        self._events = events
        self._next_port = FIRST_PORT

    async def observe(self) -> Observation:
        """Tell everything there is; what died is started again on the way."""
        # Without an await, so that no request changes the
        # list between the reading of jobs and of pods.
        entries = self._registry.entries
        with self._keeping():
            nodes = self._usable_nodes()
            return Observation(entries, nodes, self._pods.read(entries.values()))

    async def record(self, statuses: Mapping[JobId, Status]) -> None:
        """Keep these; they are on the disk when this returns."""
        with self._keeping():
            self._registry.record(statuses)

    async def is_overtaken(self) -> bool:
        """Tell by the list of jobs whether another controller has begun."""
        return not self._registry.still_leads()

    async def launch(self, order: PodOrder) -> None:
        """Start the SideCar of this pod."""
        with self._keeping():
            self._pods.launch(order.entry, order.booking)

    async def remove(self, key: PodKey, *, because: str) -> None:
        """Kill the SideCar; the next incarnation is the proof that nothing is left."""
        entry = self._registry.entries[key.job]
        for booking in entry.status.pods:
            if booking.node == key.node:
                message = f"the pod on {key.node} was removed: {because}"
                self._events.add(key.job, "PodRemoved", message, warning=True)
                # While this transaction is open no other controller
                # can begin, take the pod over and lose it here.
                with self._keeping(), self._registry.leading():
                    self._pods.kill(entry, booking)

    async def forget(self, job: JobId) -> None:
        """Remove the job, its logs and, unless its user keeps them, its checkpoints."""
        # The files go before the entry: a controller that is killed in between leaves a cancelled
        # job, and the next one forgets it again. Files without an entry would meet a namesake.
        with self._keeping(), self._registry.leading():
            self._pods.forget(job, keep_checkpoints=self._registry.keeps_checkpoints(job))
        # Not within the block above: the list opens a
        # transaction of its own, and SQLite nests none.
        with self._keeping():
            self._registry.forget(job)

    def host_of(self, _key: PodKey) -> str:
        """All nodes are this machine."""
        return HOST

    def rendezvous_port(self, _job: JobId, _generation: int, processes: int) -> int:
        """Take ports that no program uses now, and that were not used lately."""
        for _ in range(LAST_PORT - FIRST_PORT):
            first = self._next_port
            if first + processes > LAST_PORT:
                first = FIRST_PORT
            # The probe below holds no port until the ranks bind it. Each call
            # moves on, so that two starts at the same time get different ports.
            self._next_port = first + processes
            if all(_is_free(first + i) for i in range(processes)):
                return first
        raise OSError(f"no port from {FIRST_PORT} to {LAST_PORT} is free")

    async def tell(self, job: JobId, reason: str, message: str, *, warning: bool = False) -> None:
        """Wake the clients that watch this machine's Events."""
        self._events.add(job, reason, message, warning=warning)

    @contextmanager
    def _keeping(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise NotKept(f"{self._folders.registry}: {why_not_written(error)}") from error

    def _usable_nodes(self) -> tuple[Node, ...]:
        cordons = self._registry.cordons()
        if not cordons:
            return self._nodes()
        return tuple(_cordoned(node, cordons) for node in self._nodes())


def _cordoned(node: Node, cordons: Mapping[tuple[str, int], str]) -> Node:
    gpus = tuple(
        replace(
            gpu, unavailable_because=cordons.get((node.name, gpu.index), gpu.unavailable_because)
        )
        for gpu in node.gpus
    )
    return replace(node, gpus=gpus)


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True
