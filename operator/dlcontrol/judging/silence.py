"""
How long a SideCar may be silent, and what follows when it is silent for longer.

While the kubelet still reports the pod as up, :mod:`dlcontrol.acting.coordinating` ends it, because its GPUs
stay occupied otherwise. When the platform has lost the pod as well, :mod:`dlcontrol.judging.happenings.pod_failures`
plans the job without it: a new start waits until it is proven that no process is left there.
"""

from dlcontrol.situation.job_pods import JobPod
from dlcontrol.situation.ports import PodPhase

RENEWAL_S = 300.0
"""The further time for a SideCar that only waits for its new certificate; a kubelet updates Secrets once a minute."""


def must_end(job_pod: JobPod, *, now: float, lost_seconds: float) -> bool:
    """Return True if a pod that is up has to end, because its SideCar was silent for too long."""
    patience = lost_seconds + (RENEWAL_S if job_pod.contact.outdated else 0.0)
    is_silent = job_pod.pod.phase is PodPhase.UP and not job_pod.contact.reachable
    return is_silent and now - job_pod.contact.since > patience


def is_lost(job_pod: JobPod, *, now: float, lost_seconds: float) -> bool:
    """Return True if neither the platform nor the SideCar has reported on a pod for too long."""
    return job_pod.pod.phase is PodPhase.LOST and now - job_pod.contact.since > lost_seconds
