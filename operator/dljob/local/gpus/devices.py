"""
The GPUs of this machine as nodes: those that NVML finds, or virtual ones.

Virtual GPUs are only numbers that jobs get, for trials. Real GPUs are shared with other programs: each has a lock
(:mod:`dljob.local.gpus.gpu_locks`), and a GPU that other processes use is out of service. :mod:`dljob_wire.occupancy` judges that, also for SideCars before
each start.
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

from dljob.core.model import Gpu, Node, NodeName
from dljob.core.primitives.once_per_change import OncePerChange
from dljob.local.files.file_threads import AllBusyError, FileThreads
from dljob.local.gpus.gpu_choices import choose, visible
from dljob.local.gpus.gpu_locks import FOLDER, GpuLock, describe_process
from dljob.local.gpus.nvml import Device, Driver, Nvml
from dljob_wire.occupancy import Parents, Usage, find_load, find_users, is_below

log = logging.getLogger(__name__)

LOOK_S = 2.0
"""How often GPUs are checked for other processes."""
PATIENCE_S = 10.0
"""How long to wait for the driver. A driver that hangs delays no job."""

Nodes = Callable[[], tuple[Node, ...]]


def parent_of(pid: int) -> int:
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return 0
    return int(fields[1])


def is_there(pid: int) -> bool:
    """Return whether a process exists, even if ``/proc`` hides processes of other users."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        # It belongs to another user, or has an impossible number.
        return True
    return True


@dataclass(frozen=True, slots=True)
class OwnUse:
    """The processes and GPUs of this ``dljob up``."""

    processes: Collection[int]
    """Its SideCars, the ancestors of all processes of its jobs."""
    held: Collection[str]
    """The GPUs that its jobs have or have not released yet, by UUID."""


def find_foreign(
    usages: Mapping[str, Usage],
    ours: OwnUse,
    *,
    parents: Parents = parent_of,
    exists: Callable[[int], bool] = is_there,
    describe: Callable[[int], str] = describe_process,
) -> dict[str, str]:
    """Return the foreign use of each GPU that others use, by UUID."""
    reasons = {}
    for uuid, usage in usages.items():
        why = find_users(
            usage,
            # In this order: a process that ends before its parents are read may have been ours.
            is_ours=lambda pid: is_below(pid, ours.processes, parents) or not exists(pid),
            describe=describe,
        )
        if not why and uuid not in ours.held and not any(map(exists, usage.processes)):
            # In a container NVML does not name other processes.
            why = find_load(usage)
        if why:
            reasons[uuid] = why
    return reasons


class RealGpus:
    """The chosen GPUs of this machine, locked from :meth:`hold` to :meth:`close`."""

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
        """``others`` are the GPUs of this machine that were not chosen."""
        self._driver = driver
        self._devices = tuple(devices)
        self._others = tuple(others)
        self._name = NodeName(name)
        self._folder = locks
        self._look_seconds = look_seconds
        self._locks: dict[str, GpuLock] = {}
        self._locked: dict[str, str] = {}
        """Why a GPU is not locked, by UUID."""
        self._used: dict[str, str] = {}
        """The foreign use of a GPU, by UUID."""
        self._told: dict[str, str] = {}
        """The reasons that were logged."""
        self._unlisted: OncePerChange[str] = OncePerChange()
        self.known = asyncio.Event()
        """Set after the first reading, even if the driver does not answer."""
        self._unnamed: frozenset[str] = frozenset()
        """GPUs with memory in use but without a living process at the last reading."""

    def nodes(self) -> tuple[Node, ...]:
        gpus = tuple(Gpu(each.index, each.uuid, self._why_out(each)) for each in self._devices)
        types = {each.model for each in self._devices}
        return (Node(self._name, gpus, types.pop() if len(types) == 1 else self._devices[0].model),)

    @contextmanager
    def lent(self) -> Iterator[tuple[int, ...]]:
        """
        Open the locks that a SideCar inherits, so that the GPUs stay locked as long as it lives.

        Each SideCar locks all GPUs, because it gets its GPUs later and they change.
        """
        with ExitStack() as stack:
            descriptors = []
            for lock in self._locks.values():
                descriptor = lock.lend()
                if descriptor is not None:
                    stack.callback(os.close, descriptor)
                    descriptors.append(descriptor)
            # Open file description locks: closing our copies does not release them.
            yield tuple(descriptors)

    def hold(self, state: Path, in_use: Collection[int] = ()) -> None:
        """
        Take the free locks, for the jobs of this state folder.

        GPUs that jobs of an earlier start use and that were not chosen now are shown and given to no other job.
        """
        self._others = tuple(each for each in self._others if each.index in in_use)
        both = (*self._devices, *self._others)
        self._devices = tuple(sorted(both, key=lambda device: device.index))
        self._locks = {
            each.uuid: GpuLock(each, state, folder=self._folder) for each in self._devices
        }
        self._try_locks()

    def close(self) -> None:
        """Release the locks; SideCars keep theirs."""
        for lock in self._locks.values():
            lock.close()
        self._locks.clear()

    async def watch(self, ours: Callable[[], OwnUse], notify: Callable[[], None]) -> None:
        """Read the driver until cancelled, and notify of changes."""
        # One thread, because a call into a driver may hang for minutes.
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
        # Another server or its last job may have ended.
        self._try_locks()
        if usages is not None:
            self._judge_if_possible(usages, ours)
        self._told = {each.uuid: self._why_out(each) for each in self._devices}
        if self._told != before:
            self._log_changes(before)
            notify()
        # Also without a reading: a driver that hangs must not delay the first decision.
        self.known.set()

    def _judge_if_possible(self, usages: Mapping[str, Usage], ours: Callable[[], OwnUse]) -> None:
        try:
            # `ours()` after the reading, so that a SideCar that was started meanwhile is ours.
            self.judge(usages, ours())
        except OSError as error:
            # Such as too many open files. The GPUs keep their states.
            if self._unlisted.note("processes", error):
                log.warning(
                    "GPUs keep their state, because the processes of jobs cannot be listed: %s",
                    error,
                )
        else:
            self._unlisted.settle("processes")

    def judge(self, usages: Mapping[str, Usage], ours: OwnUse) -> None:
        """Find the GPUs that others use."""
        known = {device.uuid for device in self._devices}
        found = {u: why for u, why in find_foreign(usages, ours).items() if u in known}
        unnamed = frozenset(
            uuid for uuid in found if not any(map(is_there, usages[uuid].processes))
        )
        # Read twice, because memory of our process that has just ended may still be counted.
        hasty = unnamed - self._unnamed - self._used.keys()
        self._unnamed = unnamed
        # A GPU that did not answer keeps its state.
        unread = {u: why for u, why in self._used.items() if u not in usages}
        self._used = unread | {u: why for u, why in found.items() if u not in hasty}

    def _why_out(self, device: Device) -> str:
        if device in self._others:
            return "it is not among the GPUs of this start"
        return self._locked.get(device.uuid) or self._used.get(device.uuid, "")

    def _try_locks(self) -> None:
        self._locked = {u: why for u, lock in self._locks.items() if (why := lock.attempt())}

    def _log_changes(self, before: Mapping[str, str]) -> None:
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
        log.exception("the GPUs could not be read")
        return None


@dataclass(frozen=True, slots=True)
class Supply:
    nodes: Nodes
    real: RealGpus | None = None
    """``None`` if the GPUs are virtual."""


def find_gpus(
    name: str = "",
    *,
    chosen: Sequence[str] | None = None,
    environment: Mapping[str, str] = MappingProxyType({}),
) -> RealGpus:
    """
    Find the chosen GPUs of this machine, by default those that ``environment`` makes visible.

    The default name of the node is the host name. Raises :class:`~dljob.local.gpus.nvml.NoGpusError`
    and :class:`~dljob.local.gpus.gpu_choices.GpuChoiceError`.
    """
    driver = Nvml()
    there = driver.devices()
    seen = visible(environment, there) if chosen is None else choose(chosen, there)
    devices = there if seen is None else seen
    others = [device for device in there if device not in devices]
    return RealGpus(driver, devices, name=name or socket.gethostname(), others=others)
