"""
The pods of a job, made from its templates: unchanged but for what DLJob has to add.

To the pod that trains are added the SideCar (brought by an init container through a volume, and
started as process 1 of the container named trainer), the certificates it proves itself with, the
node it has to be on, and what lets it see the GPUs of that node. Everything else, also other
containers, stays as its user wrote it. ``dljob render`` shows the result.

Pure: the same job, node and settings make the same pod.
"""

import copy
import hashlib
from collections.abc import Iterable, Mapping
from typing import Any, Final

from dlcontrol.acting.sidecar_options import (
    CHECKPOINT_FOLDER,
    CHECKPOINT_REFERENCE,
    refers_to_its_folder,
    sidecar_options,
    with_folder,
)
from dlcontrol.situation.status import Booking
from dlcore.documents.podrules import TRAINER
from dlcore.model import Job, NodeName, Role
from dlcore.problems import Problem, WrongDocument
from dlkube import names
from dlkube.constraints.foreign import VISIBLE as VISIBLE_GPUS
from dloperator.podspecs.bringing import bring_sidecar
from dloperator.podspecs.podsettings import GpuAccess, PodSettings
from dloperator.podspecs.validating import REQUIRED, insist_on_shapes

Json = dict[str, Any]

TLS_FOLDER: Final = "/dljob-tls"
TLS_VOLUME: Final = "dljob-tls"
SIDECAR_PORT: Final = 8470
HEALTH_PORT: Final = 8471
"""Of the SideCar; every pod has an address of its own."""

AWAY_TAINTS: Final = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
"""What Kubernetes puts on a node whose kubelet does not work, or is not heard of."""

LATE_SECONDS: Final = 10.0
"""So long after the last SIGKILL of the SideCar the kubelet may send its own."""
LONGEST_STEM: Final = 48

HIDDEN_GPUS: Final[Mapping[str, str]] = {VISIBLE_GPUS: "void", "CUDA_VISIBLE_DEVICES": ""}
"""The first is for the container runtime, which then shows no device; the second for CUDA itself."""

_UNKNOWN_FOLDER: Final = Problem(
    "spec.checkpoint.path",
    CHECKPOINT_REFERENCE,
    "$(DLJOB_CHECKPOINT_DIR) is not known on a cluster, where only volumes outlive pods",
    "set DLJOB_CHECKPOINT_DIR in the env of the container named trainer to a folder of a volume that is"
    " mounted there, such as /ckpt/digits",
)

KEPT: Final[Mapping[str, str]] = {
    # What makes clusters smaller would end a training to empty a node that others could leave as well.
    "karpenter.sh/do-not-disrupt": "true",
    "cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
    # The SideCar proves who it is by a certificate of its own, and a mesh would end the connection.
    "traffic.sidecar.istio.io/excludeInboundPorts": f"{SIDECAR_PORT},{HEALTH_PORT}",
    "config.linkerd.io/skip-inbound-ports": f"{SIDECAR_PORT},{HEALTH_PORT}",
}
"""Annotations of the pods that train; those of a template go before."""

PREFERRED: Final = "preferredDuringSchedulingIgnoredDuringExecution"
MOST_PREFERRED: Final = 32
"""Nodes that a pod is said to prefer; a job on more has a part of itself on few of them anyway."""


# --- names --------------------------------------------------------------------------------


def trainer_name(job: str, serial: int) -> str:
    """Name the pod of a booking. It is never used twice, and so says which booking it was made for."""
    return f"{_stem(job)}-{serial}"


def auxiliary_name(job: str, role: str, number: int) -> str:
    """Name a pod of an auxiliary role: always alike, so that others can find it by its name."""
    return f"{_stem(f'{job}-{role}')}-{number}"


def _stem(name: str) -> str:
    """Shorten a name so that what comes after it has room, and so that no two become one."""
    if len(name) <= LONGEST_STEM:
        return name
    mark = hashlib.sha256(name.encode()).hexdigest()[:8]
    return f"{name[: LONGEST_STEM - 9].rstrip('-')}-{mark}"


# --- the pod that trains ------------------------------------------------------------------


def make_trainer(
    document: Json,
    job: Job,
    booking: Booking,
    settings: PodSettings,
    *,
    node: Mapping[str, Any] | None = None,
) -> Json:
    """
    Make the pod of a booking; ``document`` is the job as the API server keeps it, ``node`` its node.

    Raises :class:`~dlcore.problems.WrongDocument` if its template is no pod.
    """
    template = copy.deepcopy(dict(job.template))
    metadata, spec = document["metadata"], template["spec"]
    insist_on_shapes(template)
    pod = _pod(metadata, template, trainer_name(metadata["name"], booking.serial), TRAINER)
    pod["metadata"]["labels"][names.SERIAL_LABEL] = str(booking.serial)
    pod["metadata"]["finalizers"] = [names.PROOF_FINALIZER]
    spec["restartPolicy"] = "OnFailure"
    spec["terminationGracePeriodSeconds"] = _grace_seconds(spec, job)
    spec["affinity"] = _on_node(spec.get("affinity") or {}, booking.node)
    _tolerate(spec, settings)
    if settings.runtime_class:
        spec.setdefault("runtimeClassName", settings.runtime_class)
    pod["metadata"]["annotations"] = {**KEPT, **pod["metadata"]["annotations"]}
    if settings.gpu_access is GpuAccess.CDI and not settings.virtual_gpus:
        pod["metadata"]["annotations"][settings.cdi_annotation] = settings.cdi_devices
    program = bring_sidecar(spec, settings, node)
    spec["volumes"] = [
        *(spec.get("volumes") or ()),
        # Any user id that the trainer may run as can read it, and nobody outside of the pod.
        {
            "name": TLS_VOLUME,
            "secret": {"secretName": names.secret_name(metadata["name"]), "defaultMode": 0o444},
        },
    ]
    _hide_gpus(spec)
    for container in spec["containers"]:
        if container["name"] == TRAINER:
            _supervise(container, job, metadata["uid"], settings)
            container["command"] = [*program, *container["command"]]
    return pod


def make_bare(document: Json, job: Job) -> Json:
    """Make the pod of the template alone, so that what Kubernetes says of it is of the user's words."""
    template, metadata = copy.deepcopy(dict(job.template)), document["metadata"]
    return _pod(metadata, template, trainer_name(metadata["name"], 0), TRAINER)


def _pod(metadata: Json, template: Json, name: str, role: str) -> Json:
    own = template.get("metadata") or {}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": metadata["namespace"],
            "labels": {
                **(own.get("labels") or {}),
                names.JOB_LABEL: metadata["name"],
                names.ROLE_LABEL: role,
            },
            "annotations": dict(own.get("annotations") or {}),
            "ownerReferences": [names.owner_reference(metadata)],
        },
        "spec": template["spec"],
    }


def _grace_seconds(spec: Json, job: Job) -> int:
    """Long enough for a checkpoint and an orderly end, where the kubelet ends the pod."""
    checkpoint = job.checkpoint
    needed = checkpoint.timeout_seconds + checkpoint.grace_seconds + LATE_SECONDS
    return int(max(needed, spec.get("terminationGracePeriodSeconds") or 0))


def _on_node(affinity: Json, node: NodeName) -> Json:
    """
    Tie a pod to a node, whatever else its user asks of nodes.

    Terms are alternatives, so the node is named in each. It is not ``spec.nodeName``, which would
    go past the scheduler and all that it knows about volumes, ports and memory.
    """
    # What is there but empty was left out, as Kubernetes sees it too.
    nodes = affinity["nodeAffinity"] = affinity.get("nodeAffinity") or {}
    required = nodes[REQUIRED] = nodes.get(REQUIRED) or {}
    here = {"key": "metadata.name", "operator": "In", "values": [node]}
    required["nodeSelectorTerms"] = [
        {**term, "matchFields": [*(term.get("matchFields") or ()), here]}
        for term in required.get("nodeSelectorTerms") or [{}]
    ]
    return affinity


def _tolerate(spec: Json, settings: PodSettings) -> None:
    """
    Let it on the nodes of the pool, and let it stay on one that is not heard of.

    Kubernetes would end it there after five minutes, or when its kubelet is back, which brings nobody a
    GPU: none is given away before its end is proven, and what trains goes on meanwhile.
    """
    tolerations = spec.get("tolerations") or []
    lasting = [each for each in tolerations if each.get("effect") in (None, "", "NoExecute")]
    keys = {each.get("key") or "" for each in lasting}
    stays = [
        {"key": key, "operator": "Exists", "effect": "NoExecute"}
        for key in AWAY_TAINTS
        if not {key, ""} & keys
    ]
    ours = {"key": settings.taint, "operator": "Exists"}
    if settings.taint and ours not in tolerations:
        stays.append(ours)
    if stays:
        spec["tolerations"] = [*tolerations, *stays]


def _supervise(container: Json, job: Job, uid: str, settings: PodSettings) -> None:
    """Let the SideCar be what is started, and what the user wrote be what it starts."""
    job = _settle_checkpoints(container, job)
    interpreter = ["--python", settings.python] if settings.python else []
    options = [
        "run",
        *(_literal(option) for option in sidecar_options(job)),
        f"--listen=:{SIDECAR_PORT}",
        f"--health=:{HEALTH_PORT}",
        f"--tls={TLS_FOLDER}",
        f"--job-uid={uid}",
        f"--controller-name={settings.controller_name}",
        f"--poll-seconds={settings.poll_seconds:g}",
    ]
    if settings.release_seconds:
        options.append(f"--release-seconds={settings.release_seconds:g}")
    if settings.virtual_gpus:
        options.append("--no-gpus-expected")
    if job.progress.http:
        options.append("--inner-socket=/tmp/dljob-progress.sock")
    command = [*container["command"], *(container.pop("args", None) or ())]
    container["command"] = [
        *interpreter,
        *options,
        "--",
        *command,
    ]
    container["volumeMounts"] = [
        *(container.get("volumeMounts") or ()),
        {"name": TLS_VOLUME, "mountPath": TLS_FOLDER, "readOnly": True},
    ]
    if settings.shows_gpus and not settings.virtual_gpus:
        # By an annotation it sees them already, and an image that asks as well changes nothing.
        value = "all" if settings.gpu_access is GpuAccess.RUNTIME_CLASS else "void"
        container["env"] = [
            *(container.get("env") or ()),
            {"name": VISIBLE_GPUS, "value": value},
        ]


def _settle_checkpoints(container: Json, job: Job) -> Job:
    """
    Let the training know the folder of its checkpoints, and the SideCar what paths refer to.

    A cluster has no folder that outlives pods but those that the user mounts, so the user says which.
    """
    variables = container.get("env") or ()
    given = [each for each in variables if each.get("name") == CHECKPOINT_FOLDER]
    if given and given[-1].get("value"):
        return with_folder(job, str(given[-1]["value"]))
    if refers_to_its_folder(job):
        raise WrongDocument((_UNKNOWN_FOLDER,))
    if job.checkpoint.path and not given:
        added = {"name": CHECKPOINT_FOLDER, "value": job.checkpoint.path}
        container["env"] = [*variables, added]
    return job


def _literal(option: str) -> str:
    """Keep Kubernetes from taking ``$(NAME)`` in it, such as in a pattern, for a variable."""
    return option.replace("$(", "$$(")


# --- the pods beside it -------------------------------------------------------------------


def make_auxiliaries(document: Json, roles: Iterable[Role]) -> list[Json]:
    """Make the pods of all auxiliary roles, which live and die with the training."""
    return [
        make_auxiliary(document, role, number) for role in roles for number in range(role.replicas)
    ]


def make_auxiliary(document: Json, role: Role, number: int) -> Json:
    """Make one pod of an auxiliary role."""
    metadata, template = document["metadata"], copy.deepcopy(dict(role.template))
    _hide_gpus(template["spec"])
    _prefer_beside(template["spec"], document)
    return _pod(metadata, template, auxiliary_name(metadata["name"], role.name, number), role.name)


def _prefer_beside(spec: Json, document: Json) -> None:
    """
    Let a pod come to a node where its job trains if it can, the one with the most GPUs first.

    What parameter servers and workers exchange then stays inside a node (DRAGON, 3.1; Coach, 4.5). It is
    a preference only, and none at all where the user states one: a node may have no room for it.
    """
    allocation = (document.get("status") or {}).get("allocation") or {}
    counts = {each["name"]: len(each["gpuIds"]) for each in allocation.get("nodes") or ()}
    affinity = spec.get("affinity") or {}
    # What has another form than Kubernetes wants is left to it to refuse.
    nodes = (affinity.get("nodeAffinity") or {}) if isinstance(affinity, Mapping) else None
    if not counts or not isinstance(nodes, Mapping):
        return
    if nodes.get(PREFERRED) or affinity.get("podAffinity"):
        return
    most = sum(counts.values())
    preferred = [
        {
            "weight": max(1, 100 * count // most),
            "preference": {
                "matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]
            },
        }
        for node, count in sorted(counts.items(), key=lambda each: (-each[1], each[0]))[
            :MOST_PREFERRED
        ]
    ]
    spec["affinity"] = {**affinity, "nodeAffinity": {**nodes, PREFERRED: preferred}}


def _hide_gpus(spec: Json) -> None:
    """
    Let no container but the trainer see GPUs.

    A runtime class holds for all containers of a pod, and images for GPUs ask to see them all. What
    stands in ``env`` goes before what an image or ``envFrom`` says.
    """
    for container in (*(spec.get("initContainers") or ()), *spec["containers"]):
        if container["name"] != TRAINER:
            hidden = [{"name": name, "value": value} for name, value in HIDDEN_GPUS.items()]
            container["env"] = [*(container.get("env") or ()), *hidden]
