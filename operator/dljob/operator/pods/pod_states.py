"""The state of a booked pod, and its problem.

A problem is a code for programs, a sentence for people, and a flag for the job's own fault. The
codes are those of Kubernetes where it has one (``Evicted``, ``OOMKilled``, ``ImagePullBackOff``).
The controller decides about the consequences: a pod that was evicted, drained or preempted is started again;
running out of memory is the job's own failure; and a pod that cannot start because something is
missing keeps its GPUs only for a short time, in which a person may add it. Pure.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Final

from dljob.control.situation.ports import NODE_NOT_READY, Address, Pod, PodKey, PodPhase
from dljob.core.documents.rules.podrules import TRAINER
from dljob.kube import names
from dljob.kube.documents import Json
from dljob.operator.nodes.nodes import is_ready, readiness
from dljob.operator.podspecs.bringing import INSTALLER
from dljob.operator.podspecs.building import SIDECAR_PORT
from dljob.operator.podspecs.host_ports import first_port
from dljob.operator.proofs import OUT_OF_SERVICE, is_bound, proof_of_end, trainer_of
from dljob_wire.codec import decode_left
from dljob_wire.messages import State

NEVER_RUNS: Final = frozenset({"InvalidImageName", "ErrImageNeverPull"})
"""The job's template can never run."""
NO_SUCH_PROGRAM: Final = frozenset({126, 127})
"""Exit codes: the program cannot be executed, or does not exist."""
BACK_OFF: Final = "CrashLoopBackOff"
_SAYS_LITTLE: Final = frozenset({"", "ContainerCreating", "PodInitializing"})
_ONE_NAME: Final = {"ErrImagePull": "ImagePullBackOff"}
"""The kubelet alternates between these two, which is not reported each time."""

_DISRUPTIONS: Final[Mapping[str, tuple[str, str]]] = {
    "EvictionByEvictionAPI": ("Drained", "was evicted, as when a node is drained"),
    "PreemptionByScheduler": ("Preempted", "had to make room for a pod of higher priority"),
    "DeletionByTaintManager": ("NodeTainted", "was deleted because of a taint of the node"),
    "DeletionByPodGC": ("NodeGone", "was collected, because its node is gone"),
}
"""Reasons of the condition DisruptionTarget."""


@dataclass(frozen=True, slots=True)
class PodProblem:
    """The problem of a pod; empty without one."""

    reason: str = ""
    message: str = ""
    fault: bool = False
    """True if the job caused it, so that it would happen again."""
    stuck: bool = False
    """True if the pod does not start until a person acts."""
    unwelcome: bool = False
    """True if its node evicted it."""


def read_pod(key: PodKey, document: Json | None, *, node: Json | None, uid: str) -> Pod:
    """Read a booked pod; ``uid`` is that of its job."""
    if document is None:
        return Pod(key, PodPhase.PENDING)
    if proof := proof_of_end(document, node):
        found = explain_end(document, key.node, proof=proof)
        return _pod(key, PodPhase.ENDED, document=document, found=found)
    if is_bound(document) and node is not None and readiness(node) == "Unknown":
        message = (
            f"node {key.node} does not answer, so it is unknown what runs there; its GPUs stay"
            " with their jobs until their end is proven: by its kubelet, or, once the machine is off,"
            f" by deleting the Node or tainting it {OUT_OF_SERVICE}"
        )
        return Pod(key, PodPhase.LOST, reason="NodeLost", message=message)
    status = document.get("status") or {}
    if (trainer_of(status).get("state") or {}).get("running") and status.get("podIP"):
        port = first_port(document) or SIDECAR_PORT
        address = Address(host=status["podIP"], port=port, name=names.sidecar_name(uid))
        # The trainer may have ended before, and was started again.
        last = (trainer_of(status).get("lastState") or {}).get("terminated")
        found = _explain_death(TRAINER, last) if last else PodProblem()
        return _pod(key, PodPhase.UP, document=document, found=found, address=address)
    if is_bound(document) and node is not None and not is_ready(node):
        message = f"node {key.node} is not ready; kubectl describe node {key.node} shows why"
        return Pod(key, PodPhase.PENDING, reason=NODE_NOT_READY, message=message)
    return _pod(key, PodPhase.PENDING, document=document, found=explain_wait(document))


def _pod(
    key: PodKey,
    phase: PodPhase,
    *,
    document: Json,
    found: PodProblem,
    address: Address | None = None,
) -> Pod:
    trainer = trainer_of(document.get("status") or {})
    ends = ((trainer.get(name) or {}).get("terminated") for name in ("state", "lastState"))
    return Pod(key, phase, address, **asdict(found), left=_left_in(next(filter(None, ends), {})))


def _left_in(ended: Json) -> State | None:
    """Return the state that the SideCar left behind as the last message of its container."""
    return decode_left((ended.get("message") or "").encode(errors="replace"))


# --- why it has ended ---------------------------------------------------------------------


def explain_end(document: Json, node: str, *, proof: str) -> PodProblem:
    """Return why a pod has ended; ``proof`` names the proof of its end."""
    status = document.get("status") or {}
    pod = f"its pod on {node}"
    if proof == "NodeGone":
        return PodProblem(proof, f"{pod} is gone with its node")
    for condition in status.get("conditions") or ():
        is_target = (
            condition.get("type") == "DisruptionTarget" and condition.get("status") == "True"
        )
        if is_target and (found := _DISRUPTIONS.get(condition.get("reason", ""))):
            return PodProblem(found[0], f"{pod} {found[1]}", unwelcome=True)
    if status.get("phase") == "Failed" and status.get("reason"):
        said = status.get("message") or "the kubelet gives no details"
        fault = status["reason"] == "DeadlineExceeded"
        words = f"{pod} was ended by the node: {said}"
        return PodProblem(status["reason"], words, fault=fault, unwelcome=not fault)
    if document["metadata"].get("deletionTimestamp"):
        return PodProblem("PodDeleted", f"{pod} was deleted")
    ended = (trainer_of(status).get("state") or {}).get("terminated") or {}
    return _explain_death(TRAINER, ended) if ended else PodProblem(proof, f"{pod} ended ({proof})")


def _explain_death(name: str, ended: Json) -> PodProblem:
    reason, code = ended.get("reason") or "Error", ended.get("exitCode")
    # A state that the SideCar left behind is for programs.
    said = [] if _left_in(ended) else (ended.get("message") or "").strip().splitlines()
    words = f"container {name} ended with exit code {code}"
    if reason == "OOMKilled":
        remedy = "it used more memory than its limit; raise resources.limits.memory, or use less"
        return PodProblem(reason, f"{words} (OOMKilled): {remedy}", fault=True)
    if reason == "Error":
        reason = "ContainerFailed"
    else:
        words += f" ({reason})"
    is_named_wrong = code in NO_SUCH_PROGRAM
    return PodProblem(
        reason,
        f"{words}: {said[-1]}" if said else words,
        fault=is_named_wrong,
        stuck=is_named_wrong,
    )


# --- why it does not start ----------------------------------------------------------------


def explain_wait(document: Json) -> PodProblem:
    """Return why a pod does not run; without a reason where Kubernetes gives none."""
    status, name = document.get("status") or {}, document["metadata"]["name"]
    for condition in status.get("conditions") or ():
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            reason = condition.get("reason") or "Unschedulable"
            return PodProblem(reason, condition.get("message") or "")
    for key, is_init in (("initContainerStatuses", True), ("containerStatuses", False)):
        for container in status.get(key) or ():
            if found := _explain_container(container, is_init=is_init):
                return found
    if not (document.get("spec") or {}).get("nodeName"):
        return PodProblem(message=f"no scheduler has reported anything about pod {name} yet")
    return PodProblem(
        message=(
            f"the containers of pod {name} are not started yet; if that lasts, kubectl describe"
            f" pod {name} shows what it waits for: an image, a volume, a Secret"
        )
    )


def _explain_container(container: Json, *, is_init: bool) -> PodProblem | None:
    name, state = container["name"], container.get("state") or {}
    waiting, ended = state.get("waiting") or {}, state.get("terminated") or {}
    reason = waiting.get("reason") or ""
    if reason == BACK_OFF:
        ended = (container.get("lastState") or {}).get("terminated") or {}
    elif reason not in _SAYS_LITTLE:
        said = waiting.get("message") or "does not start"
        return PodProblem(
            _ONE_NAME.get(reason, reason),
            f"container {name}: {said}",
            fault=reason in NEVER_RUNS,
            stuck=True,
        )
    if ended and ended.get("exitCode") != 0:
        death = _explain_death(name, ended)
        if not is_init:
            return death
        # The user's own init containers count as the job's fault, the SideCar's installer does not.
        reason = "InitContainerFailed" if death.reason == "ContainerFailed" else death.reason
        fault = name != INSTALLER
        return PodProblem(reason, f"init {death.message}", fault=fault, stuck=True)
    is_back = reason == BACK_OFF
    return PodProblem(BACK_OFF, f"container {name} is not started again yet") if is_back else None
