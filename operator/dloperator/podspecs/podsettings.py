"""What can be set about the pods of jobs, and what is asked of each container that DLJob itself adds."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

RESTRICTED: Final[dict[str, Any]] = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "readOnlyRootFilesystem": True,
    "runAsNonRoot": True,
    "runAsUser": 65532,
    "runAsGroup": 65532,
    "seccompProfile": {"type": "RuntimeDefault"},
}
"""What the pod-security level "restricted" asks of a container, whatever the pod itself says."""


class Bringing(StrEnum):
    """How the SideCar comes into the pod of a training."""

    AUTO = "auto"
    """By an image volume on nodes whose kubelet and container runtime have them, else by an init container."""
    IMAGE = "image"
    """By an image volume: nothing runs before the training, and nothing is copied."""
    INIT = "init"
    """By an init container, which copies it into a volume of the pod."""


class GpuAccess(StrEnum):
    """By what the container of a training sees the GPUs of its node."""

    RUNTIME_CLASS = "runtimeClass"
    """By NVIDIA's container runtime, which NVIDIA_VISIBLE_DEVICES tells to show all of them."""
    CDI = "cdi"
    """By an annotation for that container, which a plugin of the runtime answers with CDI devices."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodSettings:
    """What pods need besides what their job says."""

    image: str = "dljob-sidecar:latest"
    """Which image brings the SideCar."""
    pull_policy: str = ""
    """As Kubernetes has it: Always, IfNotPresent, Never; empty leaves it to Kubernetes."""
    pull_secrets: tuple[str, ...] = ()
    """Secrets in the namespaces of jobs with which that image is pulled."""
    sidecar: Bringing = Bringing.AUTO
    """How it comes into a pod: auto, image (an image volume) or init (an init container)."""
    init_cpu: str = "100m"
    """The CPU of that init container, as request and as limit, so that a pod can be Guaranteed with it."""
    init_memory: str = "32Mi"
    """Its memory likewise; a LimitRange may ask for more."""
    python: str = ""
    """With which interpreter of the trainer's image the SideCar runs; empty: the first that can."""
    gpu_access: GpuAccess = GpuAccess.RUNTIME_CLASS
    """By what containers see GPUs: runtimeClass, or cdi (an annotation)."""
    cdi_annotation: str = "nvidia.cdi.k8s.io/container.trainer"
    """With gpuAccess cdi: the annotation of the pod by which its container trainer is given devices."""
    cdi_devices: str = "nvidia.com/gpu=all"
    """And its value: all GPUs of the node, by their CDI name."""
    runtime_class: str = ""
    """The runtime class by which containers see GPUs, such as nvidia; empty: none is named."""
    shows_gpus: bool = True
    """Whether containers are asked to see all GPUs of their node (by NVIDIA_VISIBLE_DEVICES)."""
    virtual_gpus: bool = False
    """Whether the GPUs exist on paper only, so that a SideCar that finds none is content."""
    poll_seconds: float = 5.0
    """How often a SideCar looks at what does not come by itself."""
    release_seconds: float = 0.0
    """For how long memory of unknown origin keeps a GPU from being released once no process of the job is left; 0: no bound."""
    taint: str = "dljob.io/pool"
    """The taint that keeps other pods off the pool; ours tolerate it."""
    controller_name: str = "controller.dljob"
    """What the certificate says of whoever may command a SideCar."""
