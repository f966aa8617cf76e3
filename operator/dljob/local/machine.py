"""
The platform of one machine (:class:`dljob.control.situation.ports.Platform`).

Jobs are in a file (:mod:`dljob.local.jobs.registry`), pods are processes (:mod:`dljob.local.pods.processes`), and GPUs are real
or virtual.
"""

import socket
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

from dljob.control.situation.ports import Entry, NotKept, Observation, PodKey, PodOrder
from dljob.control.situation.status import Status
from dljob.core.model import JobId, Node
from dljob.local.events import Events
from dljob.local.folders import Folders
from dljob.local.jobs.registry import Registry, why_not_written
from dljob.local.pods.pod_folders import note_end
from dljob.local.pods.processes import Pods

FIRST_PORT, LAST_PORT = 20000, 29999
"""Rendezvous ports, outside the range from which the kernel assigns ports."""

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
        why_leave: Callable[[], str] = str,
    ) -> None:
        """``why_leave`` returns why jobs have to leave this machine now; empty if they need not."""
        self._folders = folders
        self._registry = registry
        self._pods = pods
        self._nodes = nodes
        self._events = events
        self._why_leave = why_leave
        self._next_port = FIRST_PORT

    async def observe(self) -> Observation:
        """Read jobs, nodes and pods; SideCars that have died are started again."""
        # Without an await: a request must not change the list between jobs and pods.
        entries = self._registry.entries
        with self._keeping():
            nodes = self._usable_nodes(entries.values())
            pods = self._pods.read(entries.values())
            return Observation(entries, nodes, pods, holds=self._registry.holds)

    async def record(self, statuses: Mapping[JobId, Status]) -> None:
        with self._keeping():
            self._registry.record(statuses)
        for job, status in statuses.items():
            if status.is_final:
                note_end(self._folders, job, status)

    async def is_overtaken(self) -> bool:
        return not self._registry.still_leads()

    async def launch(self, order: PodOrder) -> None:
        with self._keeping():
            self._pods.launch(order.entry, order.booking)

    async def remove(self, key: PodKey, *, because: str) -> None:
        """Kill the SideCar of a pod. Its next incarnation proves that nothing is left."""
        entry = self._registry.entries[key.job]
        for booking in entry.status.pods:
            if booking.node == key.node:
                message = f"its SideCar on {key.node} was killed: {because}"
                self._events.add(key.job, "PodRemoved", message, warning=True)
                # Within this transaction no other controller can begin and take the pod over.
                with self._keeping(), self._registry.leading():
                    self._pods.kill(entry, booking)

    async def forget(self, job: JobId) -> None:
        """Remove a job, its logs and, unless its user keeps them, its checkpoints."""
        # Files first: after a crash in between the next controller forgets the cancelled job again. Files without an
        # entry would be found by a job of the same name.
        with self._keeping(), self._registry.leading():
            self._pods.forget(job, keep_checkpoints=self._registry.keeps_checkpoints(job))
        # Outside the block above, because the list opens a transaction of its own.
        with self._keeping():
            self._registry.forget(job)

    def host_of(self, _key: PodKey) -> str:
        return HOST

    def rendezvous_port(self, _job: JobId, _generation: int, processes: int) -> int:
        """Return the first of ``processes`` free ports in a row."""
        for _ in range(LAST_PORT - FIRST_PORT):
            first = self._next_port
            if first + processes > LAST_PORT:
                first = FIRST_PORT
            # Each call moves on, because a port stays free until the ranks bind it.
            self._next_port = first + processes
            if all(_is_free(first + i) for i in range(processes)):
                return first
        raise OSError(f"no port from {FIRST_PORT} to {LAST_PORT} is free")

    async def tell(self, job: JobId, reason: str, message: str, *, warning: bool = False) -> None:
        self._events.add(job, reason, message, warning=warning)

    @contextmanager
    def _keeping(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise NotKept(f"{self._folders.registry}: {why_not_written(error)}") from error

    def _usable_nodes(self, entries: Iterable[Entry]) -> tuple[Node, ...]:
        if why := self._why_leave():
            # Jobs leave a node that is left out here, because it counts as lost.
            if any(entry.status.pods for entry in entries):
                return ()
            leaving = (
                (node, [replace(gpu, unavailable_because=why) for gpu in node.gpus])
                for node in self._nodes()
            )
            return tuple(replace(node, gpus=tuple(gpus)) for node, gpus in leaving)
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
