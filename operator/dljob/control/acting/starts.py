"""One start of a job's processes: each container's part of it."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from dljob.control.situation.job_pods import JobPod
from dljob.control.situation.ports import Entry, Places, PodKey
from dljob.control.situation.process_sets import find_members
from dljob.control.situation.scene import Scene
from dljob.control.situation.sent import Begun
from dljob.core.model import GpuRef, Job, Node, NodeName, Placement
from dljob_wire.messages import Live, Peer, Run
from dljob_wire.messages import Phase as SideCarPhase

LONGEST_REASON: Final = 1024


def find_staying(
    scene: Scene, entry: Entry, placement: Placement, *, only: bool = False
) -> Live | None:
    """
    Return which of the processes that train now stay at this placement; None if none of them can.

    Each process has one GPU, so its place among the members is that of its GPU. ``only``: they must not restart.
    """
    present = find_members(scene, entry.job.id)
    if present is None or not present.is_running or entry.job.processes != "perGpu":
        return None
    ranks: dict[GpuRef, int] = {}
    for node, job_pod in scene.pods_of(entry.job.id).items():
        run = job_pod.run
        if run is not None and run.generation == present.generation and node in scene.nodes:
            # By the names of the present start: a SideCar compares them with those of the next one.
            places = {name: rank for rank, name in enumerate(run.gpus, start=run.rank_offset)}
            numbers = range(len(scene.nodes[node].gpus))
            named = zip(numbers, gpu_names(scene.nodes[node], numbers), strict=True)
            ranks.update({GpuRef(node, n): places[name] for n, name in named if name in places})
    members = tuple(
        ranks.get(GpuRef(part.node, number), -1)
        for part in placement.slices
        for number in part.gpus
    )
    if not any(rank >= 0 for rank in members):
        return None
    return Live(present.generation, members, only=only)


def make_start(
    scene: Scene,
    entry: Entry,
    placement: Placement,
    places: Places,
    *,
    live: Live | None = None,
) -> Begun:
    """
    Return the start that was decided, or the live change to it.

    All parts are made once, so that parts that are sent in later cycles name the same peers and ports even if a pod
    has another address by then.
    """
    job, generation = entry.job, entry.status.run_generation
    states = {
        node: job_pod.state
        for node, job_pod in scene.pods_of(job.id).items()
        if job_pod.state is not None
    }
    begun = scene.begun.get(job.id)
    if begun is not None and begun.generation == generation:
        # A container that has restarted refuses a command to its former incarnation.
        return replace(
            begun,
            runs={
                node: replace(run, incarnation=states[node].incarnation)
                for node, run in begun.runs.items()
            },
        )
    own, counts = job.training.batch_size, count_processes(job, placement)
    peers = tuple(Peer(places.host_of(PodKey(job.id, node)), n) for node, n in counts.items())
    port = places.rendezvous_port(job.id, generation, max(counts.values()))
    known = find_live_run(scene.pods_of(job.id).values(), generation)
    if known is not None:
        # A former controller has declared the change to some of the containers only.
        live, port = known.live, known.rendezvous_port
    runs: dict[NodeName, Run] = {}
    offset = 0
    for part in placement.slices:
        state = states[part.node]
        runs[part.node] = Run(
            epoch=scene.epoch,
            generation=generation,
            incarnation=state.incarnation,
            gpus=gpu_names(scene.nodes[part.node], part.gpus),
            rank_offset=offset,
            world_size=sum(counts.values()),
            peers=peers,
            rendezvous_port=port,
            batch_size=entry.status.batch_size or own,
            learning_rate_factor=(entry.status.batch_size or own) / own if own else 1.0,
            # These processes ended before this decision, and their end was not the end of the job.
            ended=state.held_generation if state.phase is SideCarPhase.EXITED else 0,
            reason=entry.status.message[:LONGEST_REASON],
            live=live,
        )
        offset += counts[part.node]
    return Begun(generation, runs)


def find_live_run(job_pods: Iterable[JobPod], generation: int) -> Run | None:
    """Return a part of the live change to this generation that is under way."""
    for job_pod in job_pods:
        target = (
            job_pod.state.target
            if job_pod.phase is SideCarPhase.CHANGING and job_pod.state
            else None
        )
        if isinstance(target, Run) and target.generation == generation and target.live is not None:
            return target
    return None


def count_processes(job: Job, placement: Placement) -> dict[NodeName, int]:
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
