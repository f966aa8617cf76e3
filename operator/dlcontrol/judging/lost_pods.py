"""Explains from a job's pods why a part of the job was lost.

A pod has ended, or the container of one has restarted, so the processes in the others would wait
for ever.
"""

from collections.abc import Iterable
from typing import NamedTuple

from dlcontrol.situation.job_pods import JobPod
from dlcontrol.situation.scene import Scene
from dlcore.model import Placement


class Loss(NamedTuple):
    """The reason of a loss, for people, and its consequences."""

    reason: str = "Restarted"
    what: str = "one of its SideCars was started again"
    fault: bool = False
    """The loss counts as a failure of the job."""
    keeps: bool = True
    """The job can start again on its GPUs."""


def explain_loss(
    scene: Scene, job_pods: Iterable[JobPod], *, placement: Placement, generation: int
) -> Loss:
    """Return why the latest start of a job, of this generation (0: nothing is left of it), is incomplete."""
    lost = [
        job_pod
        for job_pod in job_pods
        if job_pod.key.node in placement.nodes and _is_lost(job_pod, max(generation, 1))
    ]
    lost.sort(
        key=lambda job_pod: (not job_pod.pod.fault, not job_pod.has_ended, not job_pod.pod.reason)
    )
    if not lost or not lost[0].pod.reason:
        return Loss(keeps=all(_may_return(scene, job_pod, placement=placement) for job_pod in lost))
    first = lost[0].pod
    # The restart of a container is the news, not the failure before it.
    reason = first.reason if first.fault or lost[0].has_ended else Loss().reason
    return Loss(
        reason,
        first.message or f"its SideCar on {first.key.node} is gone ({first.reason})",
        fault=first.fault,
        keeps=all(_may_return(scene, job_pod, placement=placement) for job_pod in lost),
    )


def _is_lost(job_pod: JobPod, generation: int) -> bool:
    """Return True if the pod took part in the start and no longer does; a fresh pod never did."""
    return job_pod.has_ended or (not job_pod.fresh and job_pod.start < generation)


def _may_return(scene: Scene, job_pod: JobPod, *, placement: Placement) -> bool:
    """Return True if the node can take a new pod of the job at once."""
    if not job_pod.has_ended:
        return True
    node = scene.nodes.get(job_pod.key.node)
    if node is None or job_pod.pod.unwelcome:
        return False
    needed = {ref.number for ref in placement.refs() if ref.node == job_pod.key.node}
    return needed <= set(node.usable)
