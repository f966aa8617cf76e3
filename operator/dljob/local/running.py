"""
``dljob up``: the controller of one machine.

The order of the start matters: first the lock of the state folder, then the list of jobs with a new epoch, then the
server, and last the loop. Trainings outlive the controller: their SideCars go on, and the next ``dljob up`` finds them.
"""

import asyncio
import concurrent.futures.thread  # noqa: F401 - asyncio loads it later, when no descriptor may be free
import errno
import logging
import os
import platform
import signal
import threading
from collections.abc import Callable, Coroutine, Iterator
from functools import partial
from importlib.metadata import version
from typing import Any, Final

from dljob.control.learning.learned_state import LearnedState
from dljob.control.loop import Controller
from dljob.control.recording.composing import compose
from dljob.control.reporting.metrics import Metrics
from dljob.control.sidecars.following import SideCars, Surroundings
from dljob.control.situation.clocks import SteadyClock, report_steps
from dljob.control.situation.ports import PodKey
from dljob.core.measuring import SpeedSamples
from dljob.core.model import GpuRef, JobId, Node
from dljob.core.placement.limits import NamespaceLimits
from dljob.core.recording.record import Header, Record, Source
from dljob.local.api.serving import Server
from dljob.local.cloud.asking import EndWatch
from dljob.local.events import Events
from dljob.local.folders import Folders, StateError
from dljob.local.gpus.devices import OwnUse
from dljob.local.jobs.relisting import Relisting
from dljob.local.jobs.unlisted import list_jobs
from dljob.local.machine import Machine
from dljob.local.pods.launching import LaunchCommands
from dljob.local.pods.logtimes import LogTimes
from dljob.local.pods.processes import Pods
from dljob.local.pods.removing import Complain, to_the_log
from dljob.local.pods.rotating import JobLogs, LogRotator
from dljob.local.pods.sidecar_processes import lend_nothing
from dljob.local.pods.watching import PodWatch
from dljob.local.server_parts import ServerParts
from dljob.local.setup import Setup
from dljob.local.state_folder import lock_folder, make_folders
from dljob.store.importing import import_profiles
from dljob.store.notebook import Notebook
from dljob.store.opening import open_store
from dljob.store.store import Bounds
from dljob_wire.problems import WrongDocument

log = logging.getLogger(__name__)

ENDING = (signal.SIGTERM, signal.SIGINT)
ENDING_S: Final = 4.0
"""How long after a signal the server may take to end. After that its process ends as it is, which is safe at any time."""
SCARCE: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
"""The errors after which asyncio accepts a connection a second later."""
QUIET_S: Final = 60.0
"""The interval of lines in the log about refused connections."""


class Running:
    """The parts of one ``dljob up``. Create on its event loop; holds the lock until closed."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self._quiet_until = 0.0
        self.folders = Folders(setup.state, shared=setup.sharing is not None)
        make_folders(self.folders)
        self._lock = lock_folder(self.folders)
        self.clock = SteadyClock()
        self.log_times = LogTimes(self.clock)
        self._relisting = Relisting(self.folders, self.clock, dialing=setup.dialing)
        self.registry = self._relisting.open_registry(self._lock, setup.least_epoch)
        self.events = Events(self.clock)
        self.metrics = Metrics()
        # The event loop calls no reader before this constructor returns, which makes the
        # controller.
        self._watch = PodWatch(lambda: self.controller.wake())  # noqa: PLW0108
        self._watch.sockets(self.folders.sockets)
        self.pods = self._make_pods(setup)
        try:
            self._insist_on_kind()
            self._relisting.adopt(self.registry, setup.nodes(), events=self.events)
            self._insist_on_nodes(setup.nodes())
        except StateError:
            self._watch.close()
            self.registry.close()
            os.close(self._lock)
            raise
        if setup.real_gpus is not None:
            # Do this after the adoption, because adopted pods hold GPUs as well.
            setup.real_gpus.hold(setup.state, {ref.number for ref in self._held()})
        self._ends = EndWatch(setup.cloud)
        self.machine = Machine(
            self.folders,
            self.registry,
            pods=self.pods,
            nodes=setup.nodes,
            events=self.events,
            why_leave=lambda: self._ends.why,
        )
        self.memory = LearnedState(
            self._open_notebook(),
            SpeedSamples(sample_seconds=setup.sample_seconds),
            epoch=self.registry.epoch,
        )
        self.metrics.watch_store(self.memory.notebook.state)
        self.sidecars = self._make_sidecars(setup)
        self.controller = Controller(
            self.machine,
            self.sidecars,
            learning=self.memory,
            metrics=self.metrics,
            options=setup.options,
            epoch=self.registry.epoch,
            clock=self.clock,
        )
        self.server = Server(
            self._server_parts(),
            metrics=setup.metrics,
            group=setup.sharing.group if setup.sharing is not None else None,
        )

    def _make_pods(self, setup: Setup) -> Pods:
        commands = LaunchCommands(
            self.folders,
            virtual_gpus=setup.virtual_gpus,
            poll_seconds=setup.poll_seconds,
            release_seconds=setup.release_seconds,
            origin=self.registry.origin,
        )
        return Pods(
            self.folders,
            commands,
            watch=self._watch,
            times=setup.pod_times,
            origin=self.registry.origin,
            complain=self._tell_not_removed(),
            leading=self.registry.leading,
            lend=setup.real_gpus.lent if setup.real_gpus is not None else lend_nothing,
        )

    def _make_sidecars(self, setup: Setup) -> SideCars:
        return SideCars(
            Surroundings(
                heard=self._hear,
                epoch=self.registry.epoch,
                installation=self.folders.installation(),
                meter=self.metrics,
                clock=self.clock,
            ),
            setup.dialing,
        )

    def _insist_on_kind(self) -> None:
        """Refuse to start if a server of one user follows a server of all users that left jobs, or
        the reverse.

        A server of one user would run the jobs of all users as its own user.
        """
        mark, shared = self.folders.root / "shared", self.setup.sharing is not None
        before = Folders(self.folders.root, shared=mark.exists())
        if mark.exists() != shared and (self.registry.entries or any(list_jobs(before))):
            kind, option = ("of one user", "without") if shared else ("of all users", "with")
            raise StateError(
                f"{self.folders.root}: has jobs of a server {kind}; start it {option} --system, or name"
                " another folder with --state"
            )
        mark.touch() if shared else mark.unlink(missing_ok=True)

    def _insist_on_nodes(self, nodes: tuple[Node, ...]) -> None:
        """Refuse to start while pods live on nodes that this start does not have.

        The pods may hold GPUs that would look free under other names.
        """
        there = {node.name for node in nodes}
        strays = sorted(
            f"{job} on {booking.node}"
            for job, entry in self.registry.entries.items()
            for booking in entry.status.pods
            if booking.node not in there and self.pods.lives(job, booking)
        )
        if strays:
            raise StateError(
                f"{self.folders.root}: jobs train on nodes that this start does not have"
                f" ({', '.join(strays[:5])}); start it with the same --virtual-gpus or --cluster"
                " as before, or cancel or suspend these jobs first"
            )

    async def run(self, *, hears_signals: bool = True) -> None:
        """
        Control until cancelled, or until a signal ends the server.

        Raises :class:`Fenced` if another controller leads, and :class:`Behind` if the list of jobs was set back, so that
        a controller has to begin in a later epoch.
        """
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(self._explain)
        # Do this before any task exists, because an error here would have to end the tasks.
        await self.server.open()
        log.info("answers at %s", self.folders.socket)
        control = loop.create_task(self._control())
        beside = {loop.create_task(each) for each in self._beside()}
        if hears_signals:
            # A signal cancels the loop alone, and this coroutine and its caller close the rest in order. The handler
            # replaces that of asyncio.run, whose second Ctrl-C raises KeyboardInterrupt at any line.
            for signum in ENDING:
                loop.add_signal_handler(signum, self._end, control)
            if self.setup.reload is not None:
                loop.add_signal_handler(signal.SIGHUP, self._reload, self.setup.reload)
        try:
            # Not `await control`, which would raise the cancellation by a signal here. The other tasks end only by an
            # error, which ends the server: without them GPU states would be stale and logs would fill the disk.
            ended, _ = await asyncio.wait({control, *beside}, return_when=asyncio.FIRST_COMPLETED)
            for each in ended:
                if not each.cancelled():
                    each.result()
        finally:
            for each in (control, *beside):
                each.cancel()
            await asyncio.wait({control, *beside})
            log.info("stops; running jobs continue")

    def _reload(self, read: Callable[[], NamespaceLimits]) -> None:
        """Decide within the limits that the settings have now."""
        try:
            self.controller.scheduler.limit(read())
        except (WrongDocument, ValueError, OSError) as error:
            log.warning("the limits stay as they are: %s", error)
        else:
            log.info("the limits of the settings hold from now on")
            self.controller.wake()

    def _end(self, control: asyncio.Task[None]) -> None:
        control.cancel()
        # Python waits for threads, which may compute or wait for a file for minutes.
        late = threading.Timer(ENDING_S, os._exit, (0,))
        late.daemon = True
        late.start()

    def _explain(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Report that no connection can be accepted in one line, without a traceback each second."""
        error = context.get("exception")
        if not isinstance(error, OSError) or error.errno not in SCARCE:
            loop.default_exception_handler(context)
        elif loop.time() > self._quiet_until:
            self._quiet_until = loop.time() + QUIET_S
            log.warning(
                "connections wait (%s); end programs that keep connections to this server, or allow"
                " it more files (ulimit -n, LimitNOFILE)",
                error.strerror,
            )

    async def _control(self) -> None:
        """Run the loop once the GPUs of other users are known."""
        await self._relisting.narrow(self.registry, self.pods, nodes=self.setup.nodes())
        if self.setup.real_gpus is not None:
            # Set this even if the driver hangs.
            await self.setup.real_gpus.known.wait()
        if self.setup.cloud.is_wanted:
            # Else jobs would start on a machine that ends.
            await self._ends.known.wait()
        await self.controller.run()

    def _beside(self) -> Iterator[Coroutine[Any, Any, None]]:
        """Yield the other tasks of the server, which run until they are cancelled."""
        if self.setup.real_gpus is not None:
            yield self.setup.real_gpus.watch(self._ours, self.controller.wake)
        if self.setup.cloud.is_wanted:
            yield self._ends.run(self.controller.wake)
        logs = JobLogs(self.folders, lambda: self.registry.entries, limits=self.setup.logs)
        yield LogRotator(self.setup.logs, logs, times=self.log_times).run()
        yield report_steps(self.clock, log.warning)
        yield self.registry.keep_copy()

    def _ours(self) -> OwnUse:
        held = self._held()
        uuids = {
            gpu.uuid
            for node in self.setup.nodes()
            for gpu in node.gpus
            if GpuRef(node.name, gpu.index) in held
        }
        return OwnUse(self.pods.processes(self.registry.entries.values()), uuids)

    def _held(self) -> set[GpuRef]:
        """Return the GPUs that jobs have or have not released yet."""
        statuses = [entry.status for entry in self.registry.entries.values() if entry.status.pods]
        decided = {ref for each in statuses if each.placement for ref in each.placement.refs()}
        return decided.union(*(each.leftover for each in statuses))

    async def clear(self) -> None:
        """End all pods and clean up after a test or a demonstration. No controller may run."""
        await self.pods.end(self.registry.entries.values())

    async def close(self) -> None:
        """Close everything. SideCars and trainings keep running."""
        # Close the server first: it removes its socket under the lead, which needs the open list.
        await self.server.close()
        self._watch.close()
        await self.sidecars.close()
        self.memory.close()
        self.registry.close()
        if self.setup.real_gpus is not None:
            self.setup.real_gpus.close()
        # The lock last: the next controller then makes a folder of sockets, which this one must not remove.
        self.folders.tidy()
        os.close(self._lock)

    def _open_notebook(self) -> Notebook:
        store = open_store(
            self.setup.store or str(self.folders.store),
            environment=os.environ,
            bounds=Bounds(days=self.setup.options.record_days),
        )
        if self.setup.profiles:
            import_profiles(store, self.setup.profiles)
        return Notebook(store, defaults=self.setup.options.costs).open()

    def _server_parts(self) -> ServerParts:
        return ServerParts(
            folders=self.folders,
            registry=self.registry,
            events=self.events,
            log_times=self.log_times,
            policy=self.setup.options.policy,
            scene=lambda: self.controller.scene,
            snapshot=self.controller.scheduler.snapshot,
            worths=lambda: self.controller.scheduler.worths,
            wake=lambda: self.controller.wake(burst=True, urgent=True),
            reinstate=self.controller.observer.reinstate,
            history=lambda job, limit: self.memory.notebook.history(job, limit=limit),
            record=self._read_record,
            settings=lambda: self.setup.settings,
            metrics=self.metrics.text,
            about=self._about,
            virtual_gpus=self.setup.virtual_gpus,
            shared=self.setup.sharing is not None,
            clock=self.clock,
            user_limits=self.setup.user_limits,
        )

    def _read_record(self, since: float) -> Record:
        # Runs in a thread. `entries` never changes in place, so that the thread sees the jobs of one instant.
        kept = self.memory.notebook.rows()
        header = Header(
            source=Source.MACHINE,
            since=since,
            until=self.clock(),
            policy=self.setup.options.policy.name,
            title=platform.node(),
        )
        return compose(kept, tuple(self.registry.entries.values()), header=header)

    def _about(self) -> dict[str, Any]:
        return {
            "version": version("dljob"),
            "pid": os.getpid(),
            "epoch": self.registry.epoch,
            "state": str(self.folders.root.absolute()),
            "policy": self.setup.options.policy.name,
            "mechanism": self.setup.options.mechanism.value,
            "virtualGpus": self.setup.virtual_gpus,
        }

    def _tell_not_removed(self) -> Complain:
        """Return a function for any thread that reports a folder which cannot be removed."""
        loop = asyncio.get_running_loop()

        def complain(job: str, message: str) -> None:
            tell = partial(self.events.add, JobId(job), "NotRemoved", message=message, warning=True)
            try:
                loop.call_soon_threadsafe(tell)
            except RuntimeError:
                # The controller has ended.
                to_the_log(job, message)

        return complain

    def _hear(self, key: PodKey, material: bool) -> None:  # noqa: FBT001 - as Surroundings has it
        entry = self.registry.entries.get(key.job)
        state = self.sidecars.contact(key).state
        # A SideCar is followed until the next cycle after its job is forgotten.
        if entry is not None and state is not None:
            now = self.clock()
            self.memory.hear(entry, key, state, now)
            if self.setup.listener is not None:
                self.setup.listener(key, state, now)
        if material:
            self.controller.wake(urgent=True)
