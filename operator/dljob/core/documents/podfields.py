"""
The fields of the pods of a DLJob, and of the container that stands for a pod on one machine.

DLJob looks only into those that a rule needs. The rest of a template is the user's and passes unchanged;
Kubernetes itself checks it.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from dljob.core import forms
from dljob.core.documents.rules import podrules
from dljob.core.model import Container, Role
from dljob_wire.kinds import Flag, Kind, Many, Named, Quantity, Record, Text, record

_COMMAND = Many(
    description=(
        "The program and its arguments. The trainer must have one, because the SideCar starts it"
        " and cannot see what its image would start."
    ),
    remedy='write a list of its words, such as ["python", "train.py"]',
    min_items=1,
    max_items=256,
    into=list,
    items=Text(description="A word of the command.", min_length=0, max_length=65_536),
)
_ARGS = Many(
    description="The words that are appended to the command.",
    remedy='write a list of words, such as ["--lr", "0.1"]',
    max_items=4096,
    into=list,
    items=Text(description="A word of the command.", min_length=0, max_length=65_536),
)
# Open records rather than maps of amounts, because such a map would refuse the plain number in `cpu: 0.5`.
_RESOURCES = Record(
    description="The needs of the container in addition to GPUs, as in any pod.",
    is_open=True,
    fields={
        part: Record(
            description=description,
            is_open=True,
            fields={
                "nvidia.com/gpu": Quantity(
                    description="Leave it out, because spec.gpus says how many GPUs the job gets."
                )
            },
        )
        for part, description in (
            ("limits", "The most that the container may use."),
            ("requests", "The amounts that Kubernetes reserves for the container."),
        )
    },
)
_ENV = Many(
    description="Environment variables, as in any pod, but for those that name GPUs.",
    max_items=512,
    into=list,
    key="name",
    items=Record(
        description="An environment variable.",
        is_open=True,
        fields={
            "name": Text(
                description="The name of the variable.",
                required=True,
                remedy="give it a name",
                max_length=256,
                check=forms.not_a_variable,
            )
        },
    ),
)
_NAME = Text(
    description='The name of the container; the one named "trainer" is supervised.',
    required=True,
    remedy="give it a name",
    max_length=63,
    form=forms.LABEL,
)
_PROBES: Final[dict[str, Kind]] = {
    "livenessProbe": Record(
        description="Not on the trainer, which Kubernetes would kill at each change of its GPUs.",
        is_open=True,
    ),
    "startupProbe": Record(
        description="Not on the trainer, which Kubernetes would kill at each change of its GPUs.",
        is_open=True,
    ),
}
_ANY_CONTAINER = Record(
    description="A container next to the training, unchanged as in any pod.",
    noun="the container",
    is_open=True,
    rules=podrules.CONTAINER_RULES,
    fields={"name": _NAME, "env": _ENV, "resources": _RESOURCES},
)
_TRAINING_CONTAINER = Record(
    description="A container of the pod; the one named trainer runs the training.",
    noun="the container",
    is_open=True,
    rules=(*podrules.CONTAINER_RULES, *podrules.TRAINER_RULES),
    fields={
        "name": _NAME,
        "command": _COMMAND,
        "args": _ARGS,
        "env": _ENV,
        "resources": _RESOURCES,
        **_PROBES,
    },
)


CONTAINER: Final = record(
    Container,
    description=(
        "On one machine: runs the SideCar and the training in a container, so that GPUs change while"
        " the container goes on. The container uses the network of the machine, and sees the folder that"
        " the job runs in, the folder of its checkpoints, and its `folders`."
    ),
)


def labels(description: str) -> Named:
    """Build the schema of the labels of any object."""
    return Named(
        description=description,
        keys=forms.LABEL_KEY,
        max_items=256,
        values=Text(
            description="The value of a label.",
            min_length=0,
            max_length=63,
            form=forms.LABEL_VALUE,
        ),
    )


def annotations(
    description: str, *, own: str = "", known: Mapping[str, Text] = MappingProxyType({})
) -> Named:
    """Build the schema of annotations. Of names that begin with ``own``, only those in ``known`` may be given."""
    return Named(
        description=description,
        keys=forms.LABEL_KEY,
        max_items=256,
        values=Text(description="A note.", min_length=0, max_length=262_144),
        own=own,
        known=known,
    )


# DLJob adds labels here itself, so the field must be a map; no dry run checks the pods of auxiliaries.
_METADATA = Record(
    description="Labels and annotations of the pods.",
    is_open=True,
    fields={
        "labels": labels("Names by which the pods are selected."),
        "annotations": annotations("Notes to the pods, for people and programs."),
    },
)


def _containers(item: Record, description: str, *, required: bool) -> Many:
    return Many(
        description=description,
        required=required,
        remedy="give the containers of the pod",
        min_items=int(required),
        max_items=32,
        into=list,
        key="name",
        items=item,
    )


def template(description: str, *, trains: bool, required: bool) -> Record:
    """Build the schema of a PodTemplateSpec, with only the fields that rules need."""
    spec = Record(
        description="The pod, as in any other workload of Kubernetes.",
        required=True,
        remedy="give the pod, with its containers",
        is_open=True,
        rules=podrules.POD_RULES if trains else podrules.AUXILIARY_POD_RULES,
        fields={
            "containers": _containers(
                _TRAINING_CONTAINER if trains else _ANY_CONTAINER,
                "The containers of the pod.",
                required=True,
            ),
            "initContainers": _containers(
                _ANY_CONTAINER, "The containers that run before those.", required=False
            ),
            "shareProcessNamespace": Flag(
                description="Not for the training, whose SideCar must be process 1."
            ),
            "hostPID": Flag(description="Not for the training, whose SideCar must be process 1."),
            "hostNetwork": Flag(
                description="For the training only where the operator has ports for it (pods.hostPorts)."
            ),
            "nodeName": Text(
                description="Leave it out, because DLJob chooses the nodes.", max_length=253
            ),
        },
    )
    return Record(
        description=description,
        required=required,
        remedy="give a pod template",
        fixed_because="the pods of the job were made from it",
        fields={"metadata": _METADATA, "spec": spec},
    )


def auxiliaries(*, runs: bool) -> Many:
    return Many(
        description=(
            "Pods without GPUs that belong to the job, such as parameter servers. They start and"
            " end with it."
        ),
        max_items=16,
        key="name",
        fixed_because="their pods are part of the running gang",
        items=record(
            Role,
            description="A role next to the training.",
            noun="the auxiliary",
            rules=podrules.AUXILIARY_RULES,
            more={"template": template("The pod of this role.", trains=False, required=runs)},
        ),
    )
