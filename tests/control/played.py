"""
A played world to control: jobs, nodes and pods in memory, with a clock of its own.

The world's random generator draws the time of every event, so that a seed is a story that can be
replayed. A controller sees it through :class:`PlayedPlatform` and, over a network that may lose
messages, through :class:`tests.control.played_network.PlayedDialer`. Each controller has a
:class:`Leash`, which kills or holds it at any call; messages that it sent before may still arrive.
"""

import asyncio
import heapq
import random
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from math import inf

from dljob.control.situation.ports import (
    Address,
    Entry,
    Fenced,
    NotKeptAlone,
    Observation,
    Pod,
    PodKey,
    PodOrder,
    PodPhase,
)
from dljob.control.situation.status import Booking, Status
from dljob.core.model import Ceiling, Job, JobId, Node, NodeName
from dljob_sidecar.behaviour.machine import Limits
from dljob_wire.messages import Progress, State, Target, Warmth
from tests.control.played_sidecars import Container, Processes
from tests.control.witnessing import Witness

LIMITS = Limits(
    saves=True, leader_saves=True, checkpoint_seconds=20.0, grace_seconds=4.0, kill_seconds=2.0
)


class Killed(BaseException):
    """The controller ends as if by SIGKILL."""


class Leash:
    """Holds or kills a controller at one of its calls."""

    def __init__(self) -> None:
        self.calls = 0
        self.is_dead = False
        self.kill_at: int | None = None
        self.hold_at: int | None = None
        self.held: asyncio.Future[None] | None = None

    def step(self, name: str) -> None:
        """Count a call, which may be the last."""
        if self.is_dead:
            raise Killed
        self.calls += 1
        if self.calls == self.kill_at:
            self.is_dead = True
            raise Killed

    async def stay(self, name: str) -> None:
        """Count a call that yields to the event loop."""
        self.step(name)
        if self.calls == self.hold_at:
            self.held = asyncio.get_running_loop().create_future()
            await self.held
            self.held = None
            if self.is_dead:
                raise Killed


@dataclass(eq=False)
class PlayedPod:
    """A pod in the world."""

    job: JobId
    booking: Booking
    container: Container | None = None
    is_ended: bool = False
    is_removed: bool = False
    """It was removed while its node was lost, and ends when the node is back."""
    reason: str = ""
    fault: bool = False
    """It ended or was restarted by a fault of the job."""
    left: State | None = None
    """The last report of the SideCar that ended in it."""

    @property
    def node(self) -> NodeName:
        return self.booking.node


@dataclass(frozen=True)
class Manner:
    """How a training goes whose SideCar measures as a real one does."""

    speeds: Mapping[int, float]
    """Iterations per second, by number of GPUs."""
    import_seconds: float = 0.0
    """From each start to its first step."""
    warm_up_seconds: float = 0.0
    warm_up_pace: float = 1.0
    """Its speed in the warm-up, as a share of the usual speed."""
    save_seconds: float = 0.0
    """Each save takes so long, without training."""
    crashes_after_seconds: float = inf
    """Each start crashes so long after its begin."""
    is_mute: bool = False


@dataclass(eq=False)
class Course:
    """How far the training of a job is."""

    total: int
    iteration: int = 0
    saved: int = 0
    evaluates_seconds: float = 0.0
    """It goes on so long after its last step, and saves nothing of that."""
    is_done: bool = False
    """Its latest start has reported the end."""
    moved_at: float = 0.0
    crashes_at: list[int] = field(default_factory=list)
    """Iterations at which it crashes, once each."""
    manner: Manner | None = None
    """None: it takes some steps each second, and its SideCar reports each second."""
    part: float = 0.0
    """The share of its next iteration that is done."""
    done_at: float = inf
    starts: int = 0


@dataclass(frozen=True)
class Temper:
    """How unkind the world is."""

    start_fails: float = 0.0
    ignores_sigterm: float = 0.0
    checkpoint_fails: float = 0.0
    loses: float = 0.0
    """Share of messages."""
    dawdles: float = 0.0
    """Share of messages that take up to a minute."""
    pod_seconds: tuple[float, float] = (0.5, 5.0)
    warm_seconds: tuple[float, float] | None = None
    """Until spare interpreters are ready; None: there are none."""
    start_seconds: tuple[float, float] = (0.1, 1.0)
    save_seconds: tuple[float, float] = (0.1, 2.0)
    end_seconds: tuple[float, float] = (0.0, 1.0)
    leave_seconds: tuple[float, float] = (0.3, 2.0)
    """From the leave of a SideCar to the end of its pod."""
    carry_seconds: tuple[float, float] = (0.001, 0.05)
    dawdle_seconds: tuple[float, float] = (1.0, 60.0)


class World:
    """The truth about all jobs, nodes and pods."""

    def __init__(self, seed: object, nodes: Mapping[str, int], temper: Temper = Temper()) -> None:
        self.chance = random.Random(f"played/{seed}")
        self.temper = temper
        self.now = 1_000_000.0
        self.nodes: dict[NodeName, Node] = {}
        for name, size in nodes.items():
            node = Node.of(name, size)
            uuids = tuple(replace(gpu, uuid=f"GPU-{name}-{gpu.index}") for gpu in node.gpus)
            self.nodes[NodeName(name)] = replace(node, gpus=uuids)
        self.lost_nodes: dict[NodeName, Node] = {}
        self.silent: set[NodeName] = set()
        self.entries: dict[JobId, Entry] = {}
        self.pods: dict[tuple[JobId, Booking], PlayedPod] = {}
        self.courses: dict[JobId, Course] = {}
        self.epoch = 0
        self.incarnations = 0
        self.witness = Witness(self)
        self.log: deque[str] = deque(maxlen=400)
        self.listeners: list[Callable[[PlayedPod], None]] = []
        self.records = 0
        self.holds: dict[str, str] = {}
        self.find_ceilings: Callable[[Mapping[JobId, Entry]], Mapping[JobId, Ceiling]] = lambda _: {}
        """Held namespaces, with the reason."""
        self.unkept: dict[JobId, str] = {}
        """Jobs whose status is refused, with the reason."""
        self._events: list[tuple[float, int, Callable[[], object]]] = []
        self._count = 0
        self._ports = 20000

    # --- time

    def after(self, seconds: float, act: Callable[[], object]) -> None:
        self._count += 1
        heapq.heappush(self._events, (self.now + seconds, self._count, act))

    def later(self, low: float, high: float, act: Callable[[], None]) -> None:
        self.after(self.chance.uniform(low, high), act)

    def run(self, seconds: float, until: Callable[[], bool] = lambda: False) -> None:
        end = self.now + seconds
        while self._events and self._events[0][0] <= end and not until():
            self.now, _, act = heapq.heappop(self._events)
            act()
        if not until():
            self.now = end

    def note(self, text: str) -> None:
        self.log.append(f"{self.now - 1_000_000.0:9.3f} {text}")

    def fails(self, what: str) -> bool:
        likely = {
            "start": self.temper.start_fails,
            "ignores SIGTERM": self.temper.ignores_sigterm,
            "checkpoint": self.temper.checkpoint_fails,
        }
        return self.chance.random() < likely[what]

    # --- users

    def submit(
        self,
        job: Job,
        *,
        iterations: int | None = None,
        evaluates_seconds: float = 0.0,
        manner: Manner | None = None,
    ) -> None:
        total = iterations if iterations is not None else job.training.iterations or 100
        self.courses[job.id] = Course(total, evaluates_seconds=evaluates_seconds, manner=manner)
        order = 1 + max((entry.order for entry in self.entries.values()), default=0)
        status = Status(submitted_at=self.now)
        self.entries[job.id] = Entry(job, order, status, spec_generation=1)
        self.note(f"submitted {job.id} {job.gpus.options}")

    def change(self, job: JobId, **changes: object) -> None:
        entry = self.entries[job]
        new = replace(entry.job, **changes)  # type: ignore[arg-type]
        self.entries[job] = replace(entry, job=new, spec_generation=entry.spec_generation + 1)
        self.note(f"changed {job}: {changes}")

    def cancel(self, job: JobId) -> None:
        self.entries[job] = replace(self.entries[job], cancelled=True)
        self.note(f"cancelled {job}")

    # --- pods

    def pod_of(self, job: JobId, node: NodeName) -> PlayedPod | None:
        for (name, booking), pod in self.pods.items():
            if name == job and booking.node == node and not pod.is_ended:
                return pod
        return None

    def launch(self, job: JobId, booking: Booking) -> None:
        if (job, booking) in self.pods or booking not in self.entries[job].status.pods:
            return
        pod = PlayedPod(job, booking)
        self.pods[job, booking] = pod
        self.later(*self.temper.pod_seconds, lambda: self.start_container(pod))

    def start_container(self, pod: PlayedPod) -> None:
        if pod.is_ended or pod.container is not None or pod.node in self.lost_nodes:
            return
        self.incarnations += 1
        pod.container = Container(
            self,
            pod.job,
            pod.node,
            f"{pod.job}-{pod.node}-{self.incarnations}",
            self._limits_of(pod),
        )
        self.note(f"container {pod.container.incarnation} up")
        if self.temper.warm_seconds is not None:
            pod.container.warmth = Warmth(wanted=2)
            self.later(*self.temper.warm_seconds, pod.container.warm_up)
        self.tell(pod)

    def _limits_of(self, pod: PlayedPod) -> Limits:
        if self.courses[pod.job].manner is None:
            return LIMITS
        seconds = self.entries[pod.job].job.checkpoint.timeout_seconds
        return replace(LIMITS, tries=True, checkpoint_seconds=seconds)

    def restart_container(self, pod: PlayedPod, *, fault: bool = False) -> None:
        """Kill the SideCar; the next start of the container follows."""
        if pod.container is None or pod.is_ended:
            return
        self.note(f"container {pod.container.incarnation} dies")
        self._bury(pod.container, pod)
        pod.fault = fault
        self.later(0.2, 5.0, lambda: self.start_container(pod))
        self.tell(pod)

    def end_pod(self, pod: PlayedPod) -> None:
        if pod.is_ended:
            return
        self.note(f"pod {pod.job} {pod.booking} ends")
        if pod.container is not None:
            self._bury(pod.container, pod)
        pod.is_ended = True
        self.tell(pod)

    def _bury(self, container: Container, pod: PlayedPod) -> None:
        container.die()
        pod.left = container.left
        pod.container = None

    def tell(self, pod: PlayedPod) -> None:
        for listener in list(self.listeners):
            listener(pod)

    def show(self, job: JobId, booking: Booking) -> Pod:
        """Return the platform's report about a booking."""
        key = PodKey(job, booking.node)
        pod = self.pods.get((job, booking))
        if pod is None:
            return Pod(key, PodPhase.PENDING)
        if pod.is_ended:
            return Pod(key, PodPhase.ENDED, reason=pod.reason, fault=pod.fault, left=pod.left)
        address = Address(socket=f"/{job}/{booking.node}/{booking.serial}")
        if booking.node in self.lost_nodes:
            return Pod(key, PodPhase.LOST, address)
        if pod.container is None:
            return Pod(key, PodPhase.PENDING, reason=pod.reason, fault=pod.fault, left=pod.left)
        return Pod(key, PodPhase.UP, address, fault=pod.fault, left=pod.left)

    def pod_at(self, key: PodKey, address: Address) -> PlayedPod | None:
        for (job, booking), pod in self.pods.items():
            if (job, booking.node) == key and address.socket.endswith(f"/{booking.serial}"):
                return pod
        return None

    # --- containers

    def processes_begin(self, processes: Processes) -> None:
        self.note(
            f"processes of {processes.job} begin: {processes.run.generation} on "
            f"{sorted(map(str, processes.gpus))}"
        )
        processes.begun_at = self.now
        self.witness.see_begin(processes)
        course = self.courses[processes.job]
        if self.witness.is_first_of(processes):
            course.iteration, course.part = course.saved, 0.0
            course.is_done = False
            course.starts += 1

    def processes_end(self, processes: Processes) -> None:
        self.note(
            f"processes of {processes.job} end: {processes.run.generation} on {processes.node}"
        )
        self.witness.see_end(processes)

    def try_to_save(self, processes: Processes, *, goes_on: bool = False) -> bool:
        if processes.is_evaluating:
            return False  # It no longer handles signals.
        if processes.hang or self.fails("checkpoint") or not self.witness.is_whole(processes):
            processes.is_spoilt = True
            return False
        course = self.courses[processes.job]
        course.saved = course.iteration
        if not goes_on:
            self.witness.freeze(processes)
        return True

    def has_changed(self, container: Container) -> None:
        pod = self._pod_with(container)
        if pod is not None:
            self.tell(pod)

    def has_left(self, container: Container) -> None:
        pod = self._pod_with(container)
        if pod is None:
            return
        self.later(*self.temper.leave_seconds, lambda: self.end_pod(pod))

    def _pod_with(self, container: Container) -> PlayedPod | None:
        return next((pod for pod in self.pods.values() if pod.container is container), None)

    def obeys(self, container: Container, target: Target, *, saves: bool) -> None:
        kind = type(target).__name__
        self.note(
            f"{container.incarnation} obeys {kind} {target.term} {'' if saves else 'unsaved'}"
        )
        self.witness.see_obedience(container, target, saves=saves)

    def progress_of(self, processes: Processes) -> Progress:
        course, entry = self.courses[processes.job], self.entries.get(processes.job)
        idle = self.now - max(course.moved_at, processes.begun_at)
        return Progress(
            iteration=course.iteration,
            # A speed takes two steps.
            iterations_per_second=1.0 if self.now - processes.begun_at > 2.5 else 0.0,
            idle_seconds=idle,
            begun=True,
            stalled=entry is not None and 0 < entry.job.progress.stall_seconds <= idle,
        )

    def next_port(self, processes: int) -> int:
        self._ports += processes
        return self._ports


class PlayedPlatform:
    """The view that one controller has of the world."""

    def __init__(self, world: World, epoch: int, leash: Leash) -> None:
        self._world = world
        self._epoch = epoch
        self._leash = leash
        self.told: list[tuple[JobId, str, str]] = []

    async def observe(self) -> Observation:
        await self._leash.stay("observe")
        world = self._world
        return Observation(
            dict(world.entries),
            tuple(world.nodes.values()),
            {
                PodKey(job, booking.node): world.show(job, booking)
                for job, entry in world.entries.items()
                for booking in entry.status.pods
            },
            holds=dict(world.holds),
            ceilings=world.find_ceilings(world.entries),
        )

    async def record(self, statuses: Mapping[JobId, Status]) -> None:
        refused = {job: why for job, why in self._world.unkept.items() if job in statuses}
        for job, status in statuses.items():
            # As on a cluster: until the loss of a job is recorded, no other job gains GPUs.
            if refused and (job in refused or self._gains(job, status)):
                continue
            await self._leash.stay(f"record {job}")
            if self._world.epoch != self._epoch:
                raise Fenced(f"epoch {self._world.epoch} leads")
            self._world.records += 1
            entry = self._world.entries.get(job)
            if entry is None:
                continue
            self._world.witness.see_record(job, entry.status, status)
            self._world.entries[job] = replace(entry, status=status)
            self._world.note(
                f"[{self._epoch}] records {job}: {status.phase} g{status.generation}"
                f"{f'={status.adopted}' if status.adopted else ''} {status.placement}"
                f" pods {[tuple(pod)[:2] for pod in status.pods]} -{len(status.leftover)}"
            )
        if refused:
            raise NotKeptAlone(refused)
        await self._leash.stay("recorded")

    def _gains(self, job: JobId, status: Status) -> bool:
        entry = self._world.entries.get(job)
        had = entry.status.placement if entry is not None else None
        wanted = status.placement
        return wanted is not None and not set(wanted.refs()) <= set(had.refs() if had else ())

    async def is_overtaken(self) -> bool:
        await self._leash.stay("ask who leads")
        return self._world.epoch != self._epoch

    async def launch(self, order: PodOrder) -> None:
        # Others run meanwhile, and the next look may come before the launch.
        for _ in range(self._world.chance.choice((0, 1, 3, 40))):
            await asyncio.sleep(0)
        await self._leash.stay(f"launch {order.entry.job.id}")
        self._world.witness.commands += 1
        self._world.launch(order.entry.job.id, order.booking)

    async def remove(self, key: PodKey, *, because: str) -> None:
        await self._leash.stay(f"remove {key}")
        world = self._world
        world.witness.commands += 1
        world.note(f"[{self._epoch}] removes {key}: {because}")
        entry = world.entries.get(key.job)
        for booking in entry.status.pods if entry is not None else ():
            if booking.node != key.node:
                continue
            assert entry is not None
            if (key.job, booking) not in world.pods and booking.serial in entry.status.used:
                raise AssertionError(f"{booking} of {key.job} was used, and never made")
            pod = world.pods.setdefault((key.job, booking), PlayedPod(key.job, booking))
            if key.node in world.lost_nodes:
                pod.is_removed = True  # Nothing can prove an end on a lost node.
            elif pod.container is None or world.chance.random() < 0.5:
                world.later(0.0, 3.0, partial(world.end_pod, pod))
            else:
                world.later(0.0, 3.0, partial(world.restart_container, pod))

    async def forget(self, job: JobId) -> None:
        await self._leash.stay(f"forget {job}")
        self._world.witness.see_forgotten(job)
        self._world.entries.pop(job, None)
        self._world.note(f"[{self._epoch}] forgets {job}")

    def host_of(self, key: PodKey) -> str:
        return f"{key.node}"

    def rendezvous_port(self, job: JobId, generation: int, processes: int) -> int:
        return self._world.next_port(processes)

    async def tell(self, job: JobId, reason: str, message: str, *, warning: bool = False) -> None:
        await self._leash.stay(f"tell {job}")
        self.told.append((job, reason, message))
        self._world.note(f"[{self._epoch}] tells {job}: {reason}: {message}")
