"""Checks that a step gives a job real GPUs that it can run on, within its namespace's limit, with room for its pods."""

from collections.abc import Collection, Iterator, Mapping, Sequence

from dljob.core.checking.laws import Breach, Law
from dljob.core.model import Cluster, GpuRef, JobId, JobState, NodeName, Placement, Snapshot
from dljob.core.placement.amounts import Amounts, lacking, total
from dljob.core.placement.limits import namespace_of, sum_by_namespace
from dljob.core.placement.needs import Needs
from dljob.core.planning import Move, Reshape, Start, Step, count_after


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


def find_excess(steps: Sequence[Step], snapshot: Snapshot) -> Iterator[Breach]:
    """Find jobs that get more GPUs in a namespace that exceeds its limit after the plan."""
    limits = snapshot.limits
    if not limits.max_gpus:
        return
    before, after = count_after(snapshot.running, ()), count_after(snapshot.running, steps)
    # Of all jobs of a namespace, including the jobs that the plan does not change.
    totals = sum_by_namespace(after.items())
    for job, gpus in after.items():
        namespace = namespace_of(job)
        limit, has = limits.gpus_of(namespace), totals[namespace]
        if limit is not None and has > limit and gpus > before.get(job, 0):
            which = f"namespace {namespace or '(none)'} may have {limit}"
            message = f"gets more GPUs, but {which} and has {has}"
            yield Breach(Law.NAMESPACE_LIMIT, job, message)


class NewPods:
    """
    The requests of new pods, by their node.

    Pods keep their requests until they end, so only ``free`` can be given.
    """

    __slots__ = ("_asked", "_free")

    def __init__(self, free: Mapping[NodeName, Amounts]) -> None:
        self._free = free
        self._asked: dict[NodeName, list[Needs]] = {}

    def add(self, state: JobState, whole: Placement) -> list[Breach]:
        """Count the new pods of a job, and return why nodes cannot take them."""
        needs = state.needs
        if needs is None:
            return []
        new = [node for node in whole.nodes if not state.has_pod_on(node)]
        return [breach for node in new for breach in self._add(state, needs, node=node)]

    def _add(self, state: JobState, needs: Needs, *, node: NodeName) -> Iterator[Breach]:
        if needs.nodes is not None and node not in needs.nodes:
            message = f"gets a pod on {node}, which does not take its pods"
            yield Breach(Law.ROOM_FOR_PODS, state.id, message)
        there = self._asked.setdefault(node, [])
        there.append(needs)
        free = self._free.get(node)
        asked = total(dict(each.amounts) for each in there)
        if free is not None and (short := lacking(asked, free)):
            message = f"gets a pod on {node}, which has too little {' and '.join(short)} for it"
            yield Breach(Law.ROOM_FOR_PODS, state.id, message)
