"""
Why a job has lost a part of itself, according to its pods: one of them has ended, or the container
of one has restarted, so that the processes in the others would wait for ever.
"""

from collections.abc import Iterable
from typing import NamedTuple

from dlcontrol.situation.job_pods import JobPod
from dlcontrol.situation.scene import Scene
from dlcore.model import Placement


class Loss(NamedTuple):
    """The reason of a loss, for people, and its consequences."""

    reason: str = "Restarted"
    what: str = "a container of it was restarted"
    fault: bool = False
    """Whether it is the job's own failure."""
    keeps: bool = True
    """Whether it can go on where it was."""


def explain_loss(
    scene: Scene, job_pods: Iterable[JobPod], *, placement: Placement, generation: int
) -> Loss:
    """Say why the latest start of a job, of this generation (0: nothing is left of it), is not whole."""
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
    # That a container failed is no news beside that it was started again.
    reason = first.reason if first.fault or lost[0].has_ended else Loss().reason
    return Loss(
        reason,
        first.message or f"its pod on {first.key.node} is gone ({first.reason})",
        fault=first.fault,
        keeps=all(_may_return(scene, job_pod, placement=placement) for job_pod in lost),
    )


def _is_lost(job_pod: JobPod, generation: int) -> bool:
    """Whether the pod took part in the start and no longer does; a fresh pod has got no command."""
    return job_pod.has_ended or (not job_pod.fresh and job_pod.start < generation)


def _may_return(scene: Scene, job_pod: JobPod, *, placement: Placement) -> bool:
    """Whether the job can have a new pod there at once."""
    if not job_pod.has_ended:
        return True
    node = scene.nodes.get(job_pod.key.node)
    if node is None or job_pod.pod.unwelcome:
        return False
    needed = {ref.number for ref in placement.refs() if ref.node == job_pod.key.node}
    return needed <= set(node.usable)
