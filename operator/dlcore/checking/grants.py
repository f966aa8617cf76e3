"""The check that a step gives a job real GPUs that the job can run on."""

from collections.abc import Collection, Iterator

from dlcore.checking.laws import Breach, Law
from dlcore.model import Cluster, GpuRef, JobId, JobState, Placement
from dlcore.planning import Move, Reshape, Start


def find_unreal(
    job: JobId, ref: GpuRef, *, kinds: Collection[str], cluster: Cluster
) -> Iterator[Breach]:
    """Find GPUs of the job that do not exist, are unhealthy or have another type."""
    if ref.number not in cluster.usable.get(ref.node, ()):
        message = f"gets GPU {ref}, which does not exist or is out of use"
        yield Breach(Law.REAL_GPUS, job, message)
    elif cluster.by_name[ref.node].gpu_type not in kinds:
        message = f"gets GPU {ref}, which is not a {'+'.join(kinds)}"
        yield Breach(Law.REAL_GPUS, job, message)


def find_breaches(
    step: Start | Reshape | Move, state: JobState, *, whole: Placement, cluster: Cluster
) -> Iterator[Breach]:
    """Find what the job may not have of all that it has after the step."""
    yield from _find_wrong_number(step, state, whole=whole)
    if state.job.gpus.whole_nodes and step.gang <= whole.shape.gpus and not state.gang:
        yield from _find_shared_nodes(step.job, whole, cluster=cluster)
    yield from _find_wrong_batch(step, state)
    yield from _find_wrong_place(step.job, state, whole=whole, cluster=cluster)


def _find_wrong_number(
    step: Start | Reshape | Move, state: JobState, *, whole: Placement
) -> Iterator[Breach]:
    options, gpus, job = state.job.gpus.options, whole.shape.gpus, step.job
    if step.gang > gpus:
        yield Breach(Law.WHOLE_GANG, job, f"needs {step.gang} GPUs and is given {gpus}")
        if step.gang not in options:
            yield Breach(Law.ALLOWED_SHAPE, job, f"cannot run on {step.gang} GPUs")
    elif gpus not in options or step.gang not in (0, gpus):
        yield Breach(Law.ALLOWED_SHAPE, job, f"cannot run on {gpus} GPUs")


def _find_shared_nodes(job: JobId, whole: Placement, *, cluster: Cluster) -> Iterator[Breach]:
    """
    Find the nodes of which a job that shares no node has only a part; a job on one node is excepted.

    A baseline that gives a gang its pods one by one is not held to this.
    """
    for node, gpus in whole.slices:
        if len(gpus) < len(cluster.usable.get(node, ())) and len(whole.slices) > 1:
            message = f"is on several nodes and has a part of {node}"
            yield Breach(Law.ALLOWED_SHAPE, job, message)


def _find_wrong_batch(step: Start | Reshape | Move, state: JobState) -> Iterator[Breach]:
    batch, wanted = state.job.batch, step.batch_size
    if wanted is None or wanted == state.batch_size:
        return
    if not batch.elastic:
        yield Breach(Law.ALLOWED_BATCH, step.job, "may not change its batch")
    elif batch.maximum and wanted > batch.maximum:
        yield Breach(Law.ALLOWED_BATCH, step.job, f"may not train a batch of {wanted}")


def _find_wrong_place(
    job: JobId, state: JobState, *, whole: Placement, cluster: Cluster
) -> Iterator[Breach]:
    demand, nodes = state.job.gpus, whole.shape.nodes
    kinds = set(whole.gpu_type.split("+"))
    there = [cluster.by_name[name] for name in whole.nodes if name in cluster.by_name]
    if there and {node.gpu_type for node in there} != kinds:
        yield Breach(Law.REAL_GPUS, job, f"gets GPUs that are not all {whole.gpu_type}")
    if state.job.suspend:
        yield Breach(Law.PURPOSE, job, "is suspended and gets GPUs")
    if len(kinds) > 1 and not demand.mixed:
        yield Breach(Law.ALLOWED_SHAPE, job, f"may not mix {whole.gpu_type}")
    if demand.types and not kinds <= set(demand.types):
        yield Breach(Law.ALLOWED_SHAPE, job, f"cannot run on {whole.gpu_type}")
    if demand.max_nodes is not None and nodes > demand.max_nodes:
        yield Breach(Law.ALLOWED_SHAPE, job, f"may not spread over {nodes} nodes")
    if state.bound_to and not set(whole.nodes) <= set(state.bound_to):
        message = "leaves the node that alone has its checkpoint"
        yield Breach(Law.CHECKPOINT_IN_REACH, job, message)
