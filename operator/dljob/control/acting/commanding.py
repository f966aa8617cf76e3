"""Makes the commands to SideCars, and each container's part of a start."""

from collections.abc import Iterable
from dataclasses import replace

from dljob.control.acting.commands import Begin, Halt, Stamp, Try
from dljob.control.situation.dialer import Dialer
from dljob.control.situation.job_pods import JobPod
from dljob.control.situation.ports import Entry, Platform, PodKey
from dljob.control.situation.scene import Scene
from dljob.control.situation.sent import Begun, Commanded, Sent
from dljob.core.model import Job, Node, NodeName, Placement
from dljob_wire.messages import Peer, Run, Stop, Target
from dljob_wire.messages import Phase as SideCarPhase

LONGEST_REASON = 1024
RESTARTS_S = 3600.0
"""The time over which the restarts of a container count."""


class Commander:
    """Sends SideCars their commands, and notes in `Sent` what was sent."""

    def __init__(self, platform: Platform, dialer: Dialer, *, sent: Sent, epoch: int) -> None:
        self._platform = platform
        self._dialer = dialer
        self._sent = sent
        self._epoch = epoch

    def send(self, scene: Scene, command: Stamp | Halt | Try | Begin) -> None:
        match command:
            case Stamp():
                self._stamp(scene, command.key)
            case Try():
                self._try(scene, command)
            case Halt():
                self._halt(scene, command)
            case Begin():
                self._begin(scene, command)

    def _stamp(self, scene: Scene, key: PodKey) -> None:
        """Declare what the SideCar does already, under the epoch of this controller."""
        job_pod = scene.job_pods[key.job][key.node]
        state = job_pod.state
        assert state is not None
        if state.target is not None:
            mine: Target = replace(state.target, epoch=self._epoch, incarnation=state.incarnation)
        else:
            mine = Stop(self._epoch, state.generation, state.incarnation, reason="a new controller")
        self._declare(scene.now, job_pod, target=mine, is_exact=False)

    def _try(self, scene: Scene, command: Try) -> None:
        state = scene.job_pods[command.key.job][command.key.node].state
        assert state is not None
        assert isinstance(state.target, Run)
        trying = replace(state.target, epoch=self._epoch, trial=command.number)
        # _declare() would record the SideCar's own report as an exact command of this controller.
        self._dialer.declare(command.key, trying)

    def _halt(self, scene: Scene, command: Halt) -> None:
        entry = scene.entries[command.key.job]
        job_pod = scene.job_pods[command.key.job][command.key.node]
        assert job_pod.state is not None
        known = job_pod.told.generation if job_pod.told is not None else job_pod.state.generation
        # A SideCar that has to leave may have received another command in this generation.
        generation = max(entry.status.stop_generation, known + command.leave)
        coming = 0
        if command.leave:
            self._sent.fresh.discard((command.key.job, job_pod.booking))
        elif entry.status.placement is not None:
            # The processes that start next, so that spares are ready in time.
            counts = _count_processes(entry.job, entry.status.placement)
            coming = counts.get(command.key.node, 0)
        self._declare(
            scene.now,
            job_pod,
            target=Stop(
                self._epoch,
                generation,
                job_pod.state.incarnation,
                checkpoint=command.checkpoint,
                leave=command.leave,
                coming=coming,
                reason=entry.status.message[:LONGEST_REASON],
            ),
        )

    def _begin(self, scene: Scene, command: Begin) -> None:
        entry = scene.entries[command.job]
        runs = self._runs(scene, entry)
        # All parts are made once and kept, so that parts that are sent in later cycles name the same
        # peers and ports even if a pod has another address by then.
        self._sent.begun[command.job] = Begun(entry.status.run_generation, runs)
        for node in command.nodes:
            job_pod = scene.job_pods[command.job][node]
            self._sent.fresh.discard((command.job, job_pod.booking))
            self._declare(scene.now, job_pod, target=runs[node])

    def _declare(
        self, now: float, job_pod: JobPod, *, target: Target, is_exact: bool = True
    ) -> None:
        """Record the command before the pod can receive it, then send it."""
        pod = (job_pod.key.job, job_pod.booking)
        known = self._sent.commanded.get(pod)
        if known is not None and known.start != job_pod.pod.start:
            # Another start of the container has received none of these commands and holds no GPUs
            # through them.
            known = None
        gpus = known.gpus if known is not None else frozenset[str]()
        if is_exact and isinstance(target, Run):
            gpus = gpus.union(target.gpus)
        if known is None or target.term >= known.target.term:
            is_first = known is None or target.term > known.target.term
            restarts: tuple[float, ...] = ()
            if known is not None:
                restarts = tuple(at for at in known.restarts if at > now - RESTARTS_S)
                if known.target.incarnation != target.incarnation:
                    restarts = (*restarts, now)
            is_given_time = is_first or (known is not None and not known.is_for(target.incarnation))
            at = now if known is None or is_given_time else known.at
            self._sent.commanded[pod] = Commanded(
                target, at, gpus, is_exact=is_exact, restarts=restarts, start=job_pod.pod.start
            )
        self._dialer.declare(job_pod.key, target)

    def _runs(self, scene: Scene, entry: Entry) -> dict[NodeName, Run]:
        """Return the part of the start for each container of the job; it is the same in each cycle."""
        begun, placement = self._sent.begun.get(entry.job.id), entry.status.placement
        assert placement is not None
        if begun is None or begun.generation != entry.status.run_generation:
            return self._make_runs(scene, entry, placement=placement)
        runs = dict(begun.runs)
        for node, run in runs.items():
            state = scene.job_pods[entry.job.id][node].state
            assert state is not None
            # A container that has restarted refuses a command to its former incarnation.
            runs[node] = replace(run, incarnation=state.incarnation)
        return runs

    def _make_runs(
        self, scene: Scene, entry: Entry, *, placement: Placement
    ) -> dict[NodeName, Run]:
        job = entry.job
        own = job.training.batch_size
        counts = _count_processes(job, placement)
        peers = tuple(
            Peer(self._platform.host_of(PodKey(job.id, node)), count)
            for node, count in counts.items()
        )
        generation = entry.status.run_generation
        port = self._platform.rendezvous_port(job.id, generation, max(counts.values()))
        runs: dict[NodeName, Run] = {}
        offset = 0
        for part in placement.slices:
            state = scene.job_pods[job.id][part.node].state
            assert state is not None
            runs[part.node] = Run(
                epoch=self._epoch,
                generation=generation,
                incarnation=state.incarnation,
                gpus=gpu_names(scene.nodes[part.node], part.gpus),
                rank_offset=offset,
                world_size=sum(counts.values()),
                peers=peers,
                rendezvous_port=port,
                batch_size=entry.status.batch_size or own,
                learning_rate_factor=(entry.status.batch_size or own) / own if own else 1.0,
                # These processes ended before this decision, and their end was not the end of the
                # job.
                ended=state.held_generation if state.phase is SideCarPhase.EXITED else 0,
                reason=entry.status.message[:LONGEST_REASON],
            )
            offset += counts[part.node]
        return runs


def _count_processes(job: Job, placement: Placement) -> dict[NodeName, int]:
    return {
        part.node: len(part.gpus) if job.processes == "perGpu" else 1 for part in placement.slices
    }


def gpu_names(node: Node, numbers: Iterable[int]) -> tuple[str, ...]:
    """Name GPUs by UUID, or by number if the UUID is unknown.

    A number shifts to another device when a GPU with a lower number dies. A SideCar gives its
    training the names that the job wants (``gpuIds``).
    """
    uuids = {gpu.index: gpu.uuid for gpu in node.gpus if gpu.uuid}
    return tuple(uuids.get(number, str(number)) for number in numbers)
