"""
Builds the pods of a job from its templates.

The pod that trains gets the SideCar, as process 1 of the container named trainer, the SideCar's certificate, its
node, and access to the GPUs of that node. Everything else stays as the user wrote it. ``dljob render`` shows the
result.

The schema of a job covers only those parts of a template that rules need, and Kubernetes checks the finished pod. But
DLJob adds to lists and maps of the template before that, so it insists that these are lists and maps.

Pure.
"""

import copy
import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final, NamedTuple

from dljob.control.acting.sidecar_options import (
    CHECKPOINT_FOLDER,
    CHECKPOINT_REFERENCE,
    describe_training,
    refers_to_its_folder,
    training_option,
    with_folder,
)
from dljob.control.situation.status import Booking
from dljob.core.documents.rules.podrules import TRAINER
from dljob.core.model import Job, NodeName, Role
from dljob.kube import names
from dljob.kube.constraints.foreign import CDI_MARKS
from dljob.kube.constraints.foreign import VISIBLE as VISIBLE_GPUS
from dljob.kube.documents import Json, JsonObject
from dljob.operator.podspecs.bringing import bring_sidecar
from dljob.operator.podspecs.host_ports import is_on_host, take_ports
from dljob.operator.podspecs.podsettings import GpuAccess, PodSettings
from dljob_wire.problems import Problem, WrongDocument, kind_of, shown

TLS_FOLDER: Final = "/dljob-tls"
TLS_VOLUME: Final = "dljob-tls"
MEMORY_VOLUME: Final = "dljob-checkpoints"
MEMORY_FOLDER: Final = "/dljob-checkpoints"
"""The folder of checkpoints in memory, for jobs with ``checkpoint.memory``."""
PROGRESS_SOCKET: Final = "/tmp/dljob-progress.sock"  # noqa: S108 - in the container of the training
SIDECAR_PORT: Final = 8470
HEALTH_PORT: Final = SIDECAR_PORT + 1
"""The ports of the SideCar in a pod with its own address."""

AWAY_TAINTS: Final = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
"""The taints of a node whose kubelet fails or does not report."""

CLAIM: Final = "dljob-gpus"
"""The claim of a pod through which a DRA driver shows GPUs to the trainer."""

LATE_SECONDS: Final = 10.0
"""The time between the last SIGKILL of the SideCar and that of the kubelet."""
LONGEST_STEM: Final = 48

HIDDEN_GPUS: Final[Mapping[str, str]] = {VISIBLE_GPUS: "void", "CUDA_VISIBLE_DEVICES": ""}
"""The first hides devices in the container runtime, the second in CUDA."""

_UNKNOWN_FOLDER: Final = Problem(
    "spec.checkpoint.path",
    CHECKPOINT_REFERENCE,
    "$(DLJOB_CHECKPOINT_DIR) is not known on a cluster, where only volumes outlive pods",
    "set DLJOB_CHECKPOINT_DIR in the env of the container named trainer to a folder of a volume that is"
    " mounted there, such as /ckpt/digits",
)

KEPT: Final[Mapping[str, str]] = {
    # An autoscaler would end a training to empty a node, although it could empty another node.
    "karpenter.sh/do-not-disrupt": "true",
    "cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
    # A service mesh would terminate the TLS connection to the SideCar, which has its own certificate.
    "traffic.sidecar.istio.io/excludeInboundPorts": f"{SIDECAR_PORT},{HEALTH_PORT}",
    "config.linkerd.io/skip-inbound-ports": f"{SIDECAR_PORT},{HEALTH_PORT}",
}
"""Annotations of the pods that train; the template's take precedence."""

OBJECT_META: Final = frozenset(
    {
        *("annotations", "creationTimestamp", "deletionGracePeriodSeconds", "deletionTimestamp"),
        *(
            "finalizers",
            "generateName",
            "generation",
            "labels",
            "managedFields",
            "name",
            "namespace",
        ),
        *("ownerReferences", "resourceVersion", "selfLink", "uid"),
    }
)
"""The fields of the metadata of any object; a pod takes only labels and annotations from its template."""

REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED: Final = "preferredDuringSchedulingIgnoredDuringExecution"
MOST_PREFERRED: Final = 32
"""The most nodes that a pod prefers."""


# --- names --------------------------------------------------------------------------------


def trainer_name(job: str, serial: int) -> str:
    """Name the pod of a booking; a name is never used twice."""
    return f"{_stem(job)}-{serial}"


def auxiliary_name(job: str, role: str, *, number: int) -> str:
    """Name a pod of an auxiliary role; a fixed name, by which other pods reach it."""
    return f"{_stem(f'{job}-{role}')}-{number}"


def _stem(name: str) -> str:
    """Shorten a long name, and keep it unique by a hash."""
    if len(name) <= LONGEST_STEM:
        return name
    mark = hashlib.sha256(name.encode()).hexdigest()[:8]
    return f"{name[: LONGEST_STEM - 9].rstrip('-')}-{mark}"


# --- the pod that trains ------------------------------------------------------------------


def make_trainer(
    document: JsonObject,
    job: Job,
    *,
    booking: Booking,
    settings: PodSettings,
    node: Mapping[str, Any] | None = None,
    host_port: int = 0,
) -> JsonObject:
    """
    Make the pod of a booking; ``document`` is the DLJob, and ``node`` the Node.

    With hostNetwork it has the ports from ``host_port`` on. Raises :class:`~dljob_wire.problems.WrongDocument` if its
    template is not a pod.
    """
    template = copy.deepcopy(dict(job.template))
    metadata, spec = document["metadata"], template["spec"]
    problems = (*_iter_problems(spec), *_iter_devices(template.get("metadata") or {}))
    if problems:
        raise WrongDocument(problems)
    pod = _pod(
        metadata, template, name=trainer_name(metadata["name"], booking.serial), role=TRAINER
    )
    pod["metadata"]["labels"][names.SERIAL_LABEL] = str(booking.serial)
    pod["metadata"]["finalizers"] = [names.PROOF_FINALIZER]
    spec["restartPolicy"] = "OnFailure"
    # Time for a checkpoint and an orderly exit.
    needed = job.checkpoint.timeout_seconds + job.checkpoint.grace_seconds + LATE_SECONDS
    grace = int(max(needed, spec.get("terminationGracePeriodSeconds") or 0))
    spec["terminationGracePeriodSeconds"] = grace
    spec["affinity"] = _on_node(spec.get("affinity") or {}, booking.node)
    _tolerate(spec, settings)
    if settings.runtime_class:
        spec.setdefault("runtimeClassName", settings.runtime_class)
    pod["metadata"]["annotations"] = {**KEPT, **pod["metadata"]["annotations"]}
    if settings.gpu_access is GpuAccess.CDI and not settings.virtual_gpus:
        pod["metadata"]["annotations"][settings.cdi_annotation] = settings.cdi_devices
    port = (
        take_ports(pod, settings.host_ports, first=host_port) if is_on_host(spec) else SIDECAR_PORT
    )
    program = bring_sidecar(spec, settings, node=node)
    spec["volumes"] = [
        *(spec.get("volumes") or ()),
        # Readable by any user ID that the trainer may run as.
        {
            "name": TLS_VOLUME,
            "secret": {"secretName": names.secret_name(metadata["name"]), "defaultMode": 0o444},
        },
    ]
    if job.checkpoint.memory_mebibytes:
        limit = f"{job.checkpoint.memory_mebibytes}Mi"
        volume = {"medium": "Memory", "sizeLimit": limit}
        spec["volumes"].append({"name": MEMORY_VOLUME, "emptyDir": volume})
    _hide_gpus(spec)
    claims = settings.gpu_access is GpuAccess.DRA_ADMIN and not settings.virtual_gpus
    if claims:
        claim = {"name": CLAIM, "resourceClaimTemplateName": settings.claim_template}
        spec["resourceClaims"] = [*(spec.get("resourceClaims") or ()), claim]
    for container in spec["containers"]:
        if container["name"] == TRAINER:
            if claims:
                # Show the devices of the pod's claim to the trainer, and to no other container.
                resources = container.get("resources") or {}
                shown = [*(resources.get("claims") or ()), {"name": CLAIM}]
                container["resources"] = {**resources, "claims": shown}
            _supervise(container, job, uid=metadata["uid"], settings=settings, first_port=port)
            container["command"] = [*program, *container["command"]]
    return pod


def make_bare(document: JsonObject, job: Job) -> JsonObject:
    """Make the pod of the template alone, so that errors of Kubernetes concern the user's own words."""
    template, metadata = copy.deepcopy(dict(job.template)), document["metadata"]
    return _pod(metadata, template, name=trainer_name(metadata["name"], 0), role=TRAINER)


def _pod(metadata: JsonObject, template: JsonObject, *, name: str, role: str) -> JsonObject:
    own = template.get("metadata") or {}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            # Kept, so that the API server names a misspelled field in the dry run; it drops the field otherwise.
            **{field: value for field, value in own.items() if field not in OBJECT_META},
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


def _on_node(affinity: JsonObject, node: NodeName) -> JsonObject:
    """
    Require a node in addition to the user's own node affinity.

    Terms are alternatives, so each names the node. ``spec.nodeName`` would bypass kube-scheduler, which checks
    volumes, ports and memory.
    """
    # An empty value counts as absent, as it does for Kubernetes.
    nodes = affinity["nodeAffinity"] = affinity.get("nodeAffinity") or {}
    required = nodes[REQUIRED] = nodes.get(REQUIRED) or {}
    here = {"key": "metadata.name", "operator": "In", "values": [node]}
    required["nodeSelectorTerms"] = [
        {**term, "matchFields": [*(term.get("matchFields") or ()), here]}
        for term in required.get("nodeSelectorTerms") or [{}]
    ]
    return affinity


def _tolerate(spec: JsonObject, settings: PodSettings) -> None:
    """
    Tolerate the taint of the pool, and those of a node whose kubelet does not report.

    Kubernetes would evict the pod there after five minutes, which frees no GPU: DLJob gives none away before the end of
    the pod is proven, and the training continues until then.
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


def _supervise(
    container: JsonObject, job: Job, *, uid: str, settings: PodSettings, first_port: int
) -> None:
    """Make the SideCar the command of the trainer, which starts the user's command."""
    job = _settle_checkpoints(container, job)
    interpreter = ["--python", settings.python] if settings.python else []
    training = replace(
        describe_training(job, memory_folder=MEMORY_FOLDER),
        poll_seconds=settings.poll_seconds,
        release_seconds=settings.release_seconds,
        expects_gpus=not settings.virtual_gpus,
        progress_socket=PROGRESS_SOCKET if job.progress.http else "",
    )
    options = [
        "run",
        _literal(training_option(training)),
        f"--listen=:{first_port}",
        f"--health=:{first_port + 1}",
        f"--tls={TLS_FOLDER}",
        f"--job-uid={uid}",
        f"--controller-name={settings.controller_name}",
    ]
    if container.get("terminationMessagePath"):
        options.append(_literal(f"--left={container['terminationMessagePath']}"))
    command = [*container["command"], *(container.pop("args", None) or ())]
    container["command"] = [*interpreter, *options, "--", *command]
    container["volumeMounts"] = [
        *(container.get("volumeMounts") or ()),
        {"name": TLS_VOLUME, "mountPath": TLS_FOLDER, "readOnly": True},
    ]
    if job.checkpoint.memory_mebibytes:
        mount = {"name": MEMORY_VOLUME, "mountPath": MEMORY_FOLDER}
        container["volumeMounts"].append(mount)
    if settings.shows_gpus and not settings.virtual_gpus:
        # An annotation or a claim shows GPUs already; "void" keeps an image from requesting them, too.
        value = "all" if settings.gpu_access is GpuAccess.RUNTIME_CLASS else "void"
        container["env"] = [*(container.get("env") or ()), {"name": VISIBLE_GPUS, "value": value}]


def _settle_checkpoints(container: JsonObject, job: Job) -> Job:
    """
    Set the folder of checkpoints in the training's environment, and in the paths of the job.

    In a cluster only volumes outlive pods, so the user has to name a folder on one.
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
    """Escape ``$(NAME)``, which Kubernetes would expand."""
    return option.replace("$(", "$$(")


# --- auxiliary pods -----------------------------------------------------------------------


def make_auxiliary(document: JsonObject, role: Role, *, number: int) -> JsonObject:
    metadata, template = document["metadata"], copy.deepcopy(dict(role.template))
    _hide_gpus(template["spec"])
    _prefer_nodes_of_job(template["spec"], document)
    return _pod(
        metadata,
        template,
        name=auxiliary_name(metadata["name"], role.name, number=number),
        role=role.name,
    )


def _prefer_nodes_of_job(spec: JsonObject, document: JsonObject) -> None:
    """
    Prefer the nodes where the job trains, those with the most GPUs first.

    Traffic between parameter servers and workers then stays inside a node (DRAGON, 3.1; Coach, 4.5). A preference of
    the user takes precedence.
    """
    allocation = (document.get("status") or {}).get("allocation") or {}
    counts = {each["name"]: len(each["gpuIds"]) for each in allocation.get("nodes") or ()}
    affinity = spec.get("affinity") or {}
    # Kubernetes refuses an affinity of another type.
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


def _hide_gpus(spec: JsonObject) -> None:
    """
    Hide GPUs from all containers but the trainer.

    A runtime class holds for all containers of a pod, and images for GPUs request them all. A variable in ``env``
    takes precedence over one of the image or of ``envFrom``.
    """
    for container in (*(spec.get("initContainers") or ()), *spec["containers"]):
        if container["name"] != TRAINER:
            hidden = [{"name": name, "value": value} for name, value in HIDDEN_GPUS.items()]
            container["env"] = [*(container.get("env") or ()), *hidden]


# --- the shape of a template -----------------------------------------------------------------


class _Shape(NamedTuple):
    kind: type
    name: str
    remedy: str


_MAP: Final = _Shape(dict, "a mapping", "write its fields below it, as in any pod")
_LIST: Final = _Shape(list, "a list", "write its items with a dash before each, as in any pod")
_NUMBER: Final = _Shape(int, "a whole number", "write digits without quotes, such as 30")

_OF_PODS: Final[tuple[tuple[tuple[str, ...], _Shape], ...]] = (
    (("affinity",), _MAP),
    (("affinity", "nodeAffinity"), _MAP),
    (("affinity", "nodeAffinity", REQUIRED), _MAP),
    (("affinity", "nodeAffinity", REQUIRED, "nodeSelectorTerms"), _LIST),
    (("imagePullSecrets",), _LIST),
    (("terminationGracePeriodSeconds",), _NUMBER),
    (("tolerations",), _LIST),
    (("volumes",), _LIST),
)
"""Outer fields come before inner ones."""


def _iter_problems(spec: Json) -> Iterator[Problem]:
    wrong: list[tuple[str, ...]] = []
    for path, shape in _OF_PODS:
        if any(path[: len(each)] == each for each in wrong):
            continue
        value = _value_at(spec, path)
        if problem := _problem(".".join(path), value, shape=shape):
            wrong.append(path)
            yield problem
    if not wrong:
        yield from _iter_problems_of_terms(spec)
    for place, container in enumerate(spec["containers"]):
        if container["name"] == TRAINER:
            where = f"containers[{place}].volumeMounts"
            if problem := _problem(where, container.get("volumeMounts"), shape=_LIST):
                yield problem


def _iter_devices(metadata: Json) -> Iterator[Problem]:
    """Find annotations that would give a container GPUs which its job does not have."""
    for mark, value in (metadata.get("annotations") or {}).items():
        if mark.startswith(CDI_MARKS):
            message = f"the annotation {mark} gives containers devices, which DLJob does itself"
            yield Problem(
                "spec.template.metadata.annotations", value, message, "remove the annotation"
            )


def _iter_problems_of_terms(spec: Json) -> Iterator[Problem]:
    path = ("affinity", "nodeAffinity", REQUIRED, "nodeSelectorTerms")
    for place, term in enumerate(_value_at(spec, path) or ()):
        where = f"{'.'.join(path)}[{place}]"
        problem = _problem(where, term, shape=_MAP)
        if problem is None and term:
            problem = _problem(f"{where}.matchFields", term.get("matchFields"), shape=_LIST)
        if problem is not None:
            yield problem


def _value_at(spec: Json, path: tuple[str, ...]) -> Any:
    value: Any = spec
    for name in path:
        # An empty value counts as absent, as it does for Kubernetes.
        value = (value or {}).get(name)
    return value


def _problem(path: str, value: object, *, shape: _Shape) -> Problem | None:
    is_right = isinstance(value, shape.kind) and not isinstance(value, bool)
    if value is None or is_right:
        return None
    message = f"{shown(value)} is {kind_of(value)}, not {shape.name}"
    return Problem(f"spec.template.spec.{path}", value, message, shape.remedy)
