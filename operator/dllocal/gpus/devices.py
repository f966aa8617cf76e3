"""
The GPUs of this machine, as nodes: those that NVML finds, or virtual ones.

Virtual GPUs are only numbers that jobs get. They are right for trying things out, and wherever the
training paces itself; several virtual nodes make jobs over several containers real on one machine.

Real ones are shared with others: each has a lock (:mod:`dllocal.gpus.gpu_locks`), and a GPU on which
processes of others compute (:mod:`dllocal.gpus.occupancy`) is out of service until it is seen empty.
"""

import asyncio
import logging
import os
import socket
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from dlcore.model import Gpu, Node, NodeName
from dlcore.primitives.once_per_change import OncePerChange
from dllocal.files.file_threads import AllBusyError, FileThreads
from dllocal.gpus.gpu_choices import choose, visible
from dllocal.gpus.gpu_locks import FOLDER, GpuLock
from dllocal.gpus.nvml import Device, Driver, Nvml
from dllocal.gpus.occupancy import OwnUse, find_foreign, is_there
from dlwire.occupancy import Usage

log = logging.getLogger(__name__)

LOOK_S = 2.0
"""How often it is looked for processes of others."""
PATIENCE_S = 10.0
"""How long the first answer of the driver is waited for; one that hangs keeps no job waiting."""

Nodes = Callable[[], tuple[Node, ...]]


def virtual_node(gpus: int, name: str) -> Node:
    """Pretend that this machine has ``gpus`` GPUs."""
    return Node.of(name, gpus)


class RealGpus:
    """Some GPUs of this machine, with what is known of them. Held from :meth:`hold` to :meth:`close`."""

    def __init__(
        self,
        driver: Driver,
        devices: Sequence[Device],
        *,
        name: str,
        others: Sequence[Device] = (),
        locks: Path = FOLDER,
        look_seconds: float = LOOK_S,
    ) -> None:
        """``others`` are those of this machine that were not chosen."""
        self._driver = driver
        self._devices = tuple(devices)
        self._others = tuple(others)
        self._name = NodeName(name)
        self._folder = locks
        self._look_seconds = look_seconds
        self._locks: dict[str, GpuLock] = {}
        self._locked: dict[str, str] = {}
        """Why a GPU is not ours to give, by UUID."""
        self._used: dict[str, str] = {}
        """The foreign use of a GPU, by UUID."""
        self._told: dict[str, str] = {}
        """Which reasons the log has by now."""
        self._unlisted: OncePerChange[str] = OncePerChange()
        """Why our own processes could not be listed, so that this is logged once."""
        self.known = asyncio.Event()
        """Set when it is known for the first time what uses the GPUs, or that they do not answer."""
        self._unnamed: frozenset[str] = frozenset()
        """GPUs of which memory was in use at the last look, and no living process was named."""

    def nodes(self) -> tuple[Node, ...]:
        """Show all GPUs; those that are out of service with the reason."""
        gpus = tuple(Gpu(each.index, each.uuid, self._why_out(each)) for each in self._devices)
        types = {each.model for each in self._devices}
        return (Node(self._name, gpus, types.pop() if len(types) == 1 else self._devices[0].model),)

    @contextmanager
    def lent(self) -> Iterator[tuple[int, ...]]:
        """
        Open what a SideCar is to inherit, so that the GPUs stay locked as long as it lives.

        It learns only later which GPUs it has, and gets others from time to time, so it locks all of them.
        """
        with ExitStack() as stack:
            descriptors = []
            for lock in self._locks.values():
                descriptor = lock.lend()
                if descriptor is not None:
                    stack.callback(os.close, descriptor)
                    descriptors.append(descriptor)
            # These locks belong to the open file, and not to this process as POSIX locks do:
            # closing our copies afterwards takes nothing from the SideCar that has inherited them.
            yield tuple(descriptors)

    def hold(self, state: Path, in_use: Collection[int] = ()) -> None:
        """
        Take the locks that are free, for the jobs of this state folder.

        Jobs of a former start may train on GPUs that were not chosen now. These GPUs are shown, and
        given to no other job.
        """
        self._others = tuple(each for each in self._others if each.index in in_use)
        both = (*self._devices, *self._others)
        self._devices = tuple(sorted(both, key=lambda device: device.index))
        self._locks = {
            each.uuid: GpuLock(each, state, folder=self._folder) for each in self._devices
        }
        self._try_locks()

    def close(self) -> None:
        """Let go of the locks; SideCars keep theirs."""
        for lock in self._locks.values():
            lock.close()
        self._locks.clear()

    async def watch(self, ours: Callable[[], OwnUse], notify: Callable[[], None]) -> None:
        """Look again and again until cancelled, and say when something is different."""
        # A call into a driver may hang for minutes. One at a time, so that no further calls pile up behind it.
        threads = FileThreads(1)
        while True:
            self._take(await _read_in_time(self._driver, threads), ours, notify)
            await asyncio.sleep(self._look_seconds)

    def _take(
        self,
        usages: Mapping[str, Usage] | None,
        ours: Callable[[], OwnUse],
        notify: Callable[[], None],
    ) -> None:
        before = self._told
        # At each reading, because another server or its last job may have ended since.
        self._try_locks()
        if usages is not None:
            self._judge_if_possible(usages, ours)
        self._told = {each.uuid: self._why_out(each) for each in self._devices}
        if self._told != before:
            self._tell(before)
            notify()
        # Also without a reading: the first decision must not wait for a driver that hangs.
        self.known.set()

    def _judge_if_possible(self, usages: Mapping[str, Usage], ours: Callable[[], OwnUse]) -> None:
        try:
            # `ours()` is evaluated after the reading has come: a SideCar
            # that was started meanwhile would else count as foreign.
            self.judge(usages, ours())
        except OSError as error:
            # Such as too many open files. Each GPU keeps its verdict until the next look.
            if self._unlisted.note("processes", error):
                log.warning(
                    "GPUs keep their state, because the processes of jobs cannot be listed: %s",
                    error,
                )
        else:
            self._unlisted.settle("processes")

    def judge(self, usages: Mapping[str, Usage], ours: OwnUse) -> None:
        """Conclude from a reading which GPUs others use."""
        known = {device.uuid for device in self._devices}
        found = {u: why for u, why in find_foreign(usages, ours).items() if u in known}
        unnamed = frozenset(
            uuid for uuid in found if not any(map(is_there, usages[uuid].processes))
        )
        # Memory of a process of ours that has just ended may be counted for a moment: asked twice.
        hasty = unnamed - self._unnamed - self._used.keys()
        self._unnamed = unnamed
        # A GPU that did not answer keeps its verdict, because silence is no proof that it is free.
        unread = {u: why for u, why in self._used.items() if u not in usages}
        self._used = unread | {u: why for u, why in found.items() if u not in hasty}

    def _why_out(self, device: Device) -> str:
        if device in self._others:
            return "it is not among the GPUs of this start"
        return self._locked.get(device.uuid) or self._used.get(device.uuid, "")

    def _try_locks(self) -> None:
        self._locked = {u: why for u, lock in self._locks.items() if (why := lock.attempt())}

    def _tell(self, before: Mapping[str, str]) -> None:
        for device in self._devices:
            where, why = f"{self._name}/{device.index}", self._told[device.uuid]
            former = before.get(device.uuid, "")
            if why and why != former:
                log.warning("GPU %s is out of service: %s", where, why)
            elif former and not why:
                log.warning("GPU %s is back in service: other programs have left it", where)


async def _read_in_time(driver: Driver, threads: FileThreads) -> Mapping[str, Usage] | None:
    """Ask the driver; ``None`` if it does not answer in time."""
    try:
        async with asyncio.timeout(PATIENCE_S):
            return await threads.run(driver.read)
    except (TimeoutError, AllBusyError):
        return None
    except Exception:
        # A driver may raise anything, and what was not read says nothing.
        log.exception("the GPUs could not be read")
        return None


@dataclass(frozen=True, slots=True)
class Supply:
    """The GPUs that jobs may have."""

    nodes: Nodes
    real: RealGpus | None = None
    """Those of this machine, which are shared with others; ``None`` if they are virtual."""


def find_gpus(
    name: str = "",
    *,
    chosen: Sequence[str] | None = None,
    environment: Mapping[str, str] = MappingProxyType({}),
) -> RealGpus:
    """
    Find the GPUs of this machine: those that were chosen, else those that ``environment`` shows.

    The node is called by its host name if no other is given. Raises :class:`~dllocal.gpus.nvml.NoGpusError`
    and :class:`~dllocal.gpus.gpu_choices.GpuChoiceError`.
    """
    driver = Nvml()
    there = driver.devices()
    seen = visible(environment, there) if chosen is None else choose(chosen, there)
    devices = there if seen is None else seen
    others = [device for device in there if device not in devices]
    return RealGpus(driver, devices, name=name or socket.gethostname(), others=others)
