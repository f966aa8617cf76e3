"""The table of all GPUs and their holders: the paper's Table II, live.

Shown by ``dljob top`` and kept by the store. This is a view;
:class:`~dljob.control.situation.scene.Scene` derives which jobs may hold a GPU, and
:mod:`dljob.control.deciding.snapshots` which GPUs may be given away.
"""

from dljob.control.situation.ports import Entry
from dljob.control.situation.scene import Scene
from dljob.core.model import Cluster, Gpu, GpuRef, Node
from dljob.store.tables import GpuRow, GpuState


def gpu_rows(scene: Scene, cluster: Cluster) -> tuple[GpuRow, ...]:
    """Return the rows by node and number;

    ``cluster`` is that of the snapshot made from this scene.
    """
    return tuple(_row(scene, node, gpu=gpu) for node in cluster.nodes for gpu in node.gpus)


def _row(scene: Scene, node: Node, *, gpu: Gpu) -> GpuRow:
    ref = GpuRef(node.name, gpu.index)
    claimant = scene.claims.get(ref)
    holders = scene.holders.get(ref, ())
    # Of several, the job that must release the GPU, and not its next owner.
    holder = next((job for job in holders if job != claimant), next(iter(holders), None))
    job = holder or claimant
    because = gpu.unavailable_because or ("" if node.schedulable else "its node is cordoned")
    entry = scene.entries.get(job) if job is not None else None
    return GpuRow(
        node=node.name,
        gpu=gpu.index,
        uuid=gpu.uuid,
        gpu_type=node.gpu_type,
        state=_state(held=holder is not None, claimed=claimant is not None, because=because),
        job=job,
        worker=_worker(entry, ref) if holder is not None and entry is not None else None,
        since=entry.status.decided_at if entry is not None else None,
        reason=because,
    )


def _state(*, held: bool, claimed: bool, because: str) -> GpuState:
    if held:
        return GpuState.IN_USE
    if because:
        return GpuState.UNAVAILABLE
    return GpuState.RESERVED if claimed else GpuState.FREE


def _worker(entry: Entry, ref: GpuRef) -> int | None:
    """Return the rank of the process that uses the GPU, if each process has a GPU of its own."""
    placement = entry.status.placement
    if placement is None or entry.job.processes != "perGpu" or ref not in placement.refs():
        return None
    return placement.refs().index(ref)
