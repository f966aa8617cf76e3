"""
Rules against pods of a DLJob in which the SideCar could not do its work.

:mod:`dljob.core.documents.rules.jobrules` describes how rules are written.
"""

from collections.abc import Mapping
from typing import Any, Final

from dljob_wire.kinds import Rule
from dljob_wire.problems import listed

Fields = Mapping[str, Any]

TRAINER: Final = "trainer"
"""The name of the container that is supervised."""

GPU_RESOURCES: Final = "nvidia.com/"
NETWORK_RESOURCES: Final = ("hostdev", "rdma", "roce", "sriov", "mlnx", "ib")
"""The first letters of the names of NVIDIA's network devices, which share a domain with the GPUs."""
GPU_VARIABLES: Final = ("CUDA_DEVICE_ORDER", "CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES")
"""The variables that DLJob sets at each start of a process."""


def is_gpu_resource(name: str) -> bool:
    """Return true for a resource that counts GPUs. An unknown NVIDIA resource is taken for one."""
    domain, slash, kind = name.partition("/")
    return domain + slash == GPU_RESOURCES and not kind.startswith(NETWORK_RESOURCES)


def _has_gpu_request(container: Fields) -> bool:
    resources = container.get("resources", {})
    return any(
        is_gpu_resource(name) for part in ("limits", "requests") for name in resources.get(part, {})
    )


CONTAINER_RULES: Final = (
    Rule(
        name="gpus-are-not-requested",
        reads=("name", "resources"),
        at="resources",
        message=f"asks Kubernetes for GPUs ({GPU_RESOURCES}...), which DLJob gives itself",
        remedy="remove it there and say how many in spec.gpus",
        holds=lambda container: not _has_gpu_request(container),
        cel=(
            "!has(self.resources) || ["
            "has(self.resources.limits) && has(self.resources.limits.nvidia__dot__com__slash__gpu),"
            " has(self.resources.requests)"
            " && has(self.resources.requests.nvidia__dot__com__slash__gpu)"
            "].all(asked, !asked)"
        ),
    ),
    Rule(
        name="gpu-variables-are-ours",
        reads=("env",),
        at="env",
        message=f"sets one of {listed(GPU_VARIABLES, 'and')}, which DLJob sets at each start",
        remedy="remove it",
        holds=lambda container: (
            not any(variable["name"] in GPU_VARIABLES for variable in container.get("env", ()))
        ),
        cel=f"!has(self.env) || !self.env.exists(e, e.name in {list(GPU_VARIABLES)})",
    ),
)


def _without_probe(kind: str) -> Rule:
    probe = f"{kind}Probe"
    return Rule(
        name=f"trainer-has-no-{kind}-probe",
        reads=("name", probe),
        at=probe,
        message="would kill the trainer each time that its GPUs change",
        remedy="remove it (progress.stallSeconds finds a trainer that hangs)",
        holds=lambda container: container["name"] != TRAINER or probe not in container,
        cel=f"self.name != '{TRAINER}' || !has(self.{probe})",
    )


TRAINER_RULES: Final = (
    Rule(
        name="trainer-has-a-command",
        reads=("name", "command"),
        at="command",
        message="is required for the trainer: DLJob cannot read an image's own entrypoint",
        remedy='write it out, such as ["python", "train.py"]',
        holds=lambda container: container["name"] != TRAINER or bool(container.get("command")),
        cel=f"self.name != '{TRAINER}' || has(self.command)",
    ),
    _without_probe("liveness"),
    _without_probe("startup"),
)

AUXILIARY_RULES: Final = (
    Rule(
        name="trainer-is-no-auxiliary",
        reads=("name",),
        at="name",
        message="is the name of the container that trains, in template",
        remedy="give the role another name, such as ps",
        holds=lambda auxiliary: auxiliary.name != TRAINER,
        cel=f"self.name != '{TRAINER}'",
    ),
)

AUXILIARY_POD_RULES: Final = (
    Rule(
        name="nodes-are-not-named",
        reads=("nodeName",),
        at="nodeName",
        message="ties every pod to one node, and DLJob chooses the nodes",
        remedy="use nodeSelector or node affinity to narrow its choice",
        holds=lambda pod: "nodeName" not in pod,
        cel="!has(self.nodeName)",
    ),
)

POD_RULES: Final = (
    *AUXILIARY_POD_RULES,
    Rule(
        name="trainer-is-there",
        reads=("containers",),
        at="containers",
        message=f'has no container of the name "{TRAINER}", the one that gets the GPUs',
        remedy=f"name your training container {TRAINER}",
        holds=lambda pod: any(item["name"] == TRAINER for item in pod["containers"]),
        cel=f"self.containers.exists(c, c.name == '{TRAINER}')",
    ),
    Rule(
        name="processes-are-not-shared",
        reads=("shareProcessNamespace",),
        at="shareProcessNamespace",
        message="keeps the SideCar from being process 1, from where it stops and starts the training",
        remedy="remove it",
        holds=lambda pod: not pod.get("shareProcessNamespace"),
        cel="!has(self.shareProcessNamespace) || !self.shareProcessNamespace",
    ),
    Rule(
        name="processes-are-not-of-the-host",
        reads=("hostPID",),
        at="hostPID",
        message="keeps the SideCar from being process 1, from where it stops and starts the training",
        remedy="remove it",
        holds=lambda pod: not pod.get("hostPID"),
        cel="!has(self.hostPID) || !self.hostPID",
    ),
)
