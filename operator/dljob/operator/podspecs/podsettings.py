"""The settings of the pods of jobs, and the securityContext of containers that DLJob adds."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from dljob.operator.podspecs.host_ports import PortRange

RESTRICTED: Final[dict[str, Any]] = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "readOnlyRootFilesystem": True,
    "runAsNonRoot": True,
    "runAsUser": 65532,
    "runAsGroup": 65532,
    "seccompProfile": {"type": "RuntimeDefault"},
}
"""The securityContext that the pod security level "restricted" requires of a container."""


class Bringing(StrEnum):
    """The way in which the SideCar is brought into the pod of a training."""

    AUTO = "auto"
    """By an image volume on nodes whose kubelet and container runtime have them, else by an init container."""
    IMAGE = "image"
    """By an image volume: nothing runs before the training, and nothing is copied."""
    INIT = "init"
    """By an init container, which copies it into a volume of the pod."""


class GpuAccess(StrEnum):
    """The way in which the container of a training sees the GPUs of its node."""

    RUNTIME_CLASS = "runtimeClass"
    """NVIDIA's container runtime, by NVIDIA_VISIBLE_DEVICES."""
    CDI = "cdi"
    """An annotation for that container, for which the runtime adds CDI devices."""
    DRA_ADMIN = "dra-admin"
    """A ResourceClaim with adminAccess, through which a DRA driver shows all GPUs without allocating them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodSettings:
    """The parts that the operator adds to the pods of jobs."""

    image: str = "dljob-sidecar:latest"
    """The image with the SideCar."""
    pull_policy: str = ""
    """Always, IfNotPresent or Never; empty leaves it to Kubernetes."""
    pull_secrets: tuple[str, ...] = ()
    """Secrets in the namespaces of jobs for pulling that image."""
    sidecar: Bringing = Bringing.AUTO
    """How the SideCar comes into a pod: auto, image (an image volume) or init (an init
    container)."""
    init_cpu: str = "100m"
    """The CPU of that init container, as request and limit, so that the pod can still be Guaranteed."""
    init_memory: str = "32Mi"
    """The memory of that init container, as request and limit; a LimitRange may require more."""
    python: str = ""
    """The Python interpreter of the trainer's image that runs the SideCar; empty: the first that is recent enough."""
    gpu_access: GpuAccess = GpuAccess.RUNTIME_CLASS
    """How containers see GPUs: by a runtimeClass, by cdi (an annotation) or by dra-admin (a claim
    with adminAccess)."""
    cdi_annotation: str = "nvidia.cdi.k8s.io/container.trainer"
    """With gpuAccess cdi: the annotation of the pod that gives devices to its container trainer."""
    cdi_devices: str = "nvidia.com/gpu=all"
    """With gpuAccess cdi: the value of that annotation, the CDI name of all GPUs of the node."""
    claim_template: str = "dljob-gpus"
    """With gpuAccess dra-admin: the ResourceClaimTemplate for the claims of pods, in the namespaces
    of jobs."""
    runtime_class: str = ""
    """The runtime class by which containers see GPUs, such as nvidia; empty: pods name none."""
    shows_gpus: bool = True
    """True: containers request all GPUs of their node by NVIDIA_VISIBLE_DEVICES."""
    virtual_gpus: bool = False
    """True: the GPUs are virtual, so a SideCar without a GPU reports no problem."""
    poll_seconds: float = 5.0
    """How often a SideCar reads states that send no events, such as those of GPUs."""
    release_seconds: float = 0.0
    """How long memory of unknown origin keeps a GPU from being released once no process of the job
    is left; 0: without a limit."""
    host_ports: str = ""
    """The ports of each node for jobs with hostNetwork, such as 20000-29999; each job takes 100.
    Empty: jobs may not use hostNetwork."""
    taint: str = "dljob.io/pool"
    """The taint that keeps other pods off the pool; the pods of jobs tolerate it."""
    controller_name: str = "controller.dljob"
    """The name in the certificate of the controller; SideCars take commands under this name
    only."""

    def __post_init__(self) -> None:
        """Refuse a range of ports that is too small for one job."""
        if self.host_ports:
            PortRange.parse(self.host_ports)
