"""
The schema of a DLJob's spec without its pods.

This module is the reference of the job file. All platforms check, read and write documents by it, and the custom
resource has its descriptions, which ``kubectl explain`` prints. The pods are in :mod:`dljob.core.documents.podfields`,
the document around the spec in :mod:`dljob.core.documents.jobschema`, and conditions over several fields in
:mod:`dljob.core.documents.rules.jobrules`.

To add a field: one entry here and one field in :mod:`dljob.core.model.jobs`, named alike.
"""

from collections.abc import Mapping
from typing import Any, Final

from dljob.core.documents import jobforms
from dljob.core.documents.checkpointfields import CHECKPOINT
from dljob.core.documents.jobforms import PATH_LENGTH, YEAR
from dljob.core.documents.jobnames import OUR_CONTROLLER
from dljob.core.documents.language.records import Many, Record
from dljob.core.documents.language.schemas import Decimal, Flag, Node, Number, Text
from dljob.core.documents.podfields import CONTAINER
from dljob.core.documents.progressfields import PROGRESS
from dljob.core.documents.rules import jobrules
from dljob.core.model import BatchRange, Direction, Framework, Target, Training

MAX_GPUS: Final = 16_384
MAX_OPTIONS: Final = 64


# --- gpus ---------------------------------------------------------------------------------

GPUS: Final = Record(
    description=(
        "On which numbers and kinds of GPUs the job can run. DLJob gives it one of these numbers"
        " and may change to another of them while it runs."
    ),
    required=True,
    remedy="say on how many GPUs it can run, such as gpus: {options: [1, 2, 4]}",
    rules=jobrules.GPU_RULES,
    fields={
        "options": Many(
            description="The numbers of GPUs that the job can run on, one by one.",
            remedy="write a list such as [1, 2, 4]",
            min_items=1,
            max_items=MAX_OPTIONS,
            unique=True,
            items=Number(
                description="A number of GPUs that the job can run on.",
                minimum=1,
                maximum=MAX_GPUS,
                remedy="give counts of at least 1",
            ),
        ),
        "min": Number(
            description=(
                "Instead of options: the smallest number of GPUs, 1 if left out; every number up"
                " to max is allowed."
            ),
            minimum=1,
            maximum=MAX_GPUS,
        ),
        "max": Number(
            description=(
                "The largest number of GPUs. Together with options, larger options do not count for"
                " now. kubectl scale and autoscalers set it."
            ),
            minimum=0,
            maximum=MAX_GPUS,
            remedy=f"give a whole number from 1 to {MAX_GPUS:,}",
        ),
        "requested": Number(
            description=(
                "The number that a scheduler without elasticity would give: one of the options;"
                " the largest if left out. If it is more than max allows, the largest allowed option."
            ),
            minimum=1,
            maximum=MAX_GPUS,
        ),
        "types": Many(
            description=(
                "The types of GPUs that the job can use, the preferred one first; any if left out."
                " Speeds are kept for each type apart."
            ),
            min_items=1,
            max_items=16,
            unique=True,
            items=Text(description="A type of GPU.", max_length=63, form=jobforms.GPU_TYPE),
        ),
        "mixed": Flag(
            description="Whether GPUs of different types may work for the job at the same time.",
            default=False,
        ),
        "maxNodes": Number(
            description=(
                "Over how many nodes the job may spread. If left out there is no limit, but for"
                " framework none it is 1, because its processes cannot find each other."
            ),
            minimum=1,
            maximum=MAX_GPUS,
        ),
        "ids": Text(
            description=(
                "The names in CUDA_VISIBLE_DEVICES: the index of a GPU in PCI bus order, or its UUID."
            ),
            max_length=8,
            choices=("index", "uuid"),
            default="index",
        ),
    },
)

# --- training -----------------------------------------------------------------------------


def _training(*, epochs: int | None = None, **given: Any) -> Training:
    if epochs is not None:
        given["iterations"] = epochs * given["iterations_per_epoch"]
    return Training(epochs=epochs, **given)


TRAINING: Final = Record(
    description=(
        "How long the job trains: a number of epochs or iterations, or until a target is reached,"
        " whose time is predicted from the curve so far. With both, the first of them counts. Or,"
        " if the length is not known, until the program ends."
    ),
    required=True,
    remedy="say how long the job trains, such as training: {iterations: 10000}",
    fixed_because="what is left of it was predicted from it and is trained already in part",
    into=_training,
    rules=jobrules.TRAINING_RULES,
    fields={
        "iterations": Number(
            description="The number of training steps, the same on however many GPUs.",
            minimum=1,
            maximum=10**12,
        ),
        "epochs": Number(
            description="The number of passes over the dataset; iterationsPerEpoch goes with it.",
            minimum=1,
            maximum=10**6,
        ),
        "iterationsPerEpoch": Number(
            description="The number of training steps in one pass over the dataset.",
            minimum=1,
            maximum=10**9,
        ),
        "untilExit": Flag(
            description=(
                "Whether the length of the training is not known, and it is done when its program"
                " ends with exit status 0. Policies then assume a length; a known one is better."
            ),
            default=False,
            writes=lambda until_exit: until_exit or None,
        ),
        "batchSize": Number(
            description=(
                "The global batch size, over all GPUs. It stays the same on any number of GPUs,"
                " unless batch.elastic allows otherwise."
            ),
            minimum=1,
            maximum=10**9,
            writes=lambda size: size or None,
        ),
        "target": Record(
            description="The value of a metric at which the job is done before its last iteration.",
            into=Target,
            fields={
                "metric": Text(
                    description="The name of the metric, as progress reports it.",
                    required=True,
                    remedy="name the metric that progress reports, such as top5",
                    max_length=63,
                    form=jobforms.WORD,
                ),
                "value": Decimal(
                    description="The value to reach.",
                    required=True,
                    remedy="give the value to reach, such as 0.9",
                    minimum=-(10**9),
                    maximum=10**9,
                ),
                "patience": Number(
                    description="How many reports in a row must reach it, so that it is no accident.",
                    minimum=1,
                    maximum=1000,
                    default=1,
                ),
                "direction": Text(
                    description=(
                        "Whether the metric rises as training goes on (an accuracy) or falls (a"
                        " loss)."
                    ),
                    max_length=8,
                    choices=("rises", "falls"),
                    default="rises",
                    reads=Direction,
                    writes=lambda direction: direction.value,
                ),
            },
        ),
        "mayEndEarly": Flag(
            description=(
                "Whether the training may end by itself, with exit status 0, before its last iteration,"
                " as early stopping does: the job is Completed for the reason EndedEarly. If not, such an"
                " end is a failure, of which backoffLimit says how many are allowed. An end is early if"
                " the iteration reported last and the usual step between two reports are less than"
                " iterations."
            ),
            default=True,
        ),
    },
)

PROFILE: Final = Record(
    description=(
        "The properties that the job shares with earlier jobs, so that their speeds and curves count"
        " for it: with training.batchSize they are the key of the profile store."
    ),
    fixed_because="DLJob stores under it what it has measured of the job",
    fields={
        "model": Text(
            description="The model that is trained, such as resnet18.",
            required=True,
            remedy="name the model, such as resnet18",
            max_length=128,
            form=jobforms.TYPE_PART,
        ),
        "dataset": Text(
            description="The dataset that it is trained on, such as imagenet.",
            max_length=128,
            form=jobforms.TYPE_PART,
        ),
    },
)


# --- all of them, in the order in which people write them ---------------------------------

FIELDS: Final[Mapping[str, Node]] = {
    "gpus": GPUS,
    "framework": Text(
        description=(
            "The framework by whose variables the processes learn their ranks and peers; none sets"
            " no variables."
        ),
        max_length=16,
        choices=tuple(framework.value for framework in Framework),
        default=Framework.NONE.value,
        fixed_because="the running processes have found each other by its rules",
    ),
    "processes": Text(
        description=(
            "Whether a training process is started for each GPU or for each node. If left out,"
            " perGpu; for framework none perNode, because its processes cannot tell which of"
            " several they are, and would all do the same work and write the same files."
        ),
        max_length=8,
        choices=("perGpu", "perNode"),
        fixed_because="the SideCar in the running container was started with it",
    ),
    "training": TRAINING,
    "profile": PROFILE,
    "progress": PROGRESS,
    "checkpoint": CHECKPOINT,
    "environment": Record(
        description=(
            "On one machine: the environment in which the training runs; that of the submission if"
            " left out. On Kubernetes it has no effect, because the image is the environment."
        ),
        fixed_because="the running processes were started in it",
        rules=jobrules.ENVIRONMENT_RULES,
        fields={
            "python": Text(
                description=(
                    "The interpreter whose environment it is, such as /opt/envs/train/bin/python."
                    " Its folder is the first of PATH, and the virtual or conda environment around"
                    " it is active."
                ),
                max_length=PATH_LENGTH,
                form=jobforms.PROGRAM,
            ),
            "variables": Many(
                description=(
                    "The variables of the submitter that it gets in addition to PATH, HOME, USER,"
                    " LOGNAME, SHELL, LANG, TZ and TMPDIR; all if left out. A job in a container"
                    " gets only the variables in this list, and none if it is left out."
                ),
                max_items=256,
                unique=True,
                items=Text(
                    description="The name of a variable.", max_length=128, form=jobforms.VARIABLE
                ),
            ),
            "container": CONTAINER,
        },
    ),
    "warmStart": Record(
        description=(
            "Keeps a spare interpreter ready that has imported the slow modules already, which"
            " makes each restart shorter. For training that a Python command starts."
        ),
        fixed_because="the spare interpreters of the running container were started with it",
        fields={
            "preload": Many(
                description="The modules to import beforehand, such as torch.",
                required=True,
                remedy="name the modules that are slow to import, such as [torch]",
                min_items=1,
                max_items=32,
                unique=True,
                items=Text(description="A module.", max_length=128, form=jobforms.MODULE),
            )
        },
    ),
    "batch": Record(
        description=(
            "Whether the global batch size may change with the number of GPUs; the learning"
            " rate then follows it."
        ),
        fixed_because="the training was started with its first batch size on this promise",
        into=BatchRange,
        rules=jobrules.BATCH_RULES,
        fields={
            "elastic": Flag(
                description="Whether it may change.",
                default=False,
                writes=lambda elastic: elastic or None,
            ),
            "max": Number(
                description="The largest global batch size that still converges.",
                minimum=1,
                maximum=10**9,
                attribute="maximum",
                writes=lambda size: size or None,
            ),
        },
    ),
    "managedBy": Text(
        description=(
            "The controller that manages the job, as on a Job of batch/v1. If left out, or"
            f" {OUR_CONTROLLER}, DLJob does. DLJob leaves a job of another controller alone:"
            " it gives the job no GPUs and does not write its status. It cannot change. On one machine"
            " it has no effect."
        ),
        max_length=63,
        form=jobforms.CONTROLLER,
    ),
    "priority": Number(
        description="Jobs of a higher priority come first.",
        minimum=-(10**9),
        maximum=10**9,
        default=0,
    ),
    "suspend": Flag(
        description=(
            "Whether the job gives its GPUs back, after a checkpoint, and waits until this is"
            " false again."
        ),
        default=False,
    ),
    "ttlSecondsAfterFinished": Number(
        description="After this number of seconds DLJob removes a finished job; never if left out.",
        minimum=0,
        maximum=YEAR,
    ),
    "activeDeadlineSeconds": Number(
        description="This number of seconds after its first GPUs DLJob stops the job as failed.",
        minimum=1,
        maximum=YEAR,
    ),
    "backoffLimit": Number(
        description=(
            "How often the training may crash, or hang for progress.restartSeconds, and be started"
            " again before the job fails."
        ),
        minimum=0,
        maximum=1000,
        default=3,
    ),
}
