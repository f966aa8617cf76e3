"""
The nodes on which kube-scheduler recently refused the pods of a job.

DLJob does not evaluate affinity to other pods and topology, so the job avoids such a node for some time.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from dljob.control.situation.ports import UNSCHEDULABLE
from dljob.core.model import JobId, NodeName
from dljob.core.placement.needs import Needs
from dljob.kube.documents import Json

REFUSED_S: Final = 300.0
"""The time for which a job avoids a node after kube-scheduler has refused its pod there."""
LONGEST_REASON: Final = 200


class Refusals:
    """Keeps the refused nodes of each job with kube-scheduler's message, for some time."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._refused: dict[JobId, dict[NodeName, tuple[float, str]]] = {}
        """The end of each refusal, and the reason."""

    def note(self, job: JobId, node: NodeName, *, said: str) -> None:
        until = self._clock() + REFUSED_S
        self._refused.setdefault(job, {})[node] = (until, said[:LONGEST_REASON])

    def forget(self, job: JobId) -> None:
        """Let a job try every node again."""
        self._refused.pop(job, None)

    def forget_node(self, job: JobId, node: NodeName) -> None:
        """Forget the refusal of a node that has a pod of the job now."""
        self._refused.get(job, {}).pop(node, None)

    def expire(self) -> set[JobId]:
        """Forget the refusals that have ended, and return their jobs."""
        now, jobs = self._clock(), set()
        for job, nodes in list(self._refused.items()):
            left = {node: each for node, each in nodes.items() if each[0] > now}
            if len(left) < len(nodes):
                jobs.add(job)
                self._refused[job] = left
            if not left:
                del self._refused[job]
        return jobs

    def of(self, job: JobId) -> dict[NodeName, str]:
        """Return the nodes that a job avoids, each with the reason."""
        return {node: said for node, (_, said) in self._refused.get(job, {}).items()}


def leave_out(needs: Needs, refused: Mapping[NodeName, str], *, nodes: Iterable[NodeName]) -> Needs:
    """Remove the refused nodes from a job's needs."""
    allowed = needs.nodes if needs.nodes is not None else frozenset(nodes)
    said: dict[str, int] = dict(needs.refusals)
    for node, why in refused.items():
        if node in allowed:
            reason = f"that kube-scheduler refused recently ({why})"
            said[reason] = said.get(reason, 0) + 1
    left = allowed - refused.keys()
    return Needs(needs.amounts, frozenset(left), tuple(sorted(said.items())))


def read_refusal(document: Json) -> str:
    """Return kube-scheduler's reason for not binding a pod; empty if it gives none."""
    for condition in (document.get("status") or {}).get("conditions") or ():
        is_it = condition.get("type") == "PodScheduled" and condition.get("status") == "False"
        if is_it and condition.get("reason") == UNSCHEDULABLE:
            return str(condition.get("message") or UNSCHEDULABLE)
    return ""
