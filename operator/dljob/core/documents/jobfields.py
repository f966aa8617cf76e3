"""
The schema of a DLJob's spec without its pods.

This module is the reference of the job file. All platforms check, read and write documents by it, and the custom
resource has its descriptions, which ``kubectl explain`` prints. The pods are in :mod:`dljob.core.documents.podfields`,
the document around the spec in :mod:`dljob.core.documents.jobschema`, and conditions over several fields in
:mod:`dljob.core.documents.rules.jobrules`.

To add a field: one line in the class that has its neighbours, in :mod:`dljob.core.model.jobs` or :mod:`dljob_wire.training`.
"""

from collections.abc import Mapping
from typing import Final

from dljob.core import forms
from dljob.core.documents.jobnames import OUR_CONTROLLER
from dljob.core.documents.podfields import CONTAINER
from dljob.core.documents.rules import jobrules
from dljob.core.model import BatchRange, Checkpoint, Framework, Progress, Training
from dljob_wire.checkpoints import CHECKPOINT_RULES, DAY, PATH_LENGTH
from dljob_wire.kinds import Flag, Kind, Many, OneOf, Record, Text, Whole, record
from dljob_wire.training import LIVE_SECONDS

MAX_GPUS: Final = 16_384
MAX_OPTIONS: Final = 64
YEAR: Final = 366 * DAY


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
            items=Whole(
                description="A number of GPUs that the job can run on.",
                minimum=1,
                maximum=MAX_GPUS,
                remedy="give counts of at least 1",
            ),
        ),
        "min": Whole(
            description=(
                "Instead of options: the smallest number of GPUs, 1 if left out; every number up"
                " to max is allowed."
            ),
            minimum=1,
            maximum=MAX_GPUS,
        ),
        "max": Whole(
            description=(
                "The largest number of GPUs. Together with options, larger options do not count for"
                " now. kubectl scale and autoscalers set it."
            ),
            minimum=0,
            maximum=MAX_GPUS,
            remedy=f"give a whole number from 1 to {MAX_GPUS:,}",
        ),
        "requested": Whole(
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
            items=Text(description="A type of GPU.", max_length=63, form=forms.GPU_TYPE),
        ),
        "mixed": Flag(
            description="True if GPUs of different types may work for the job at the same time.",
            default=False,
        ),
        "maxNodes": Whole(
            description=(
                "Over how many nodes the job may spread. If left out there is no limit, but for"
                " framework none it is 1, because its processes cannot find each other."
            ),
            minimum=1,
            maximum=MAX_GPUS,
        ),
        "ids": OneOf(
            ("index", "uuid"),
            description=(
                "The names in CUDA_VISIBLE_DEVICES: the index of a GPU in PCI bus order, or its UUID."
            ),
            default="index",
        ),
    },
)

# --- parts that a class declares ----------------------------------------------------------

TRAINING: Final = record(
    Training,
    description=(
        "How long the job trains: a number of epochs or iterations, or until a target is reached,"
        " whose time is predicted from the curve so far. With both, the first of them counts. Or,"
        " if the length is not known, until the program ends."
    ),
    required=True,
    remedy="say how long the job trains, such as training: {iterations: 10000}",
    fixed_because="what is left of it was predicted from it and is trained already in part",
    rules=jobrules.TRAINING_RULES,
)

PROGRESS: Final = record(
    Progress,
    description=(
        "Where DLJob reads the progress of the training: exactly one of log, file and http. Training"
        " code need not change if it prints its steps already."
    ),
    fixed_because="the SideCar in the running container was started with it",
    rules=jobrules.PROGRESS_RULES,
    checks={"log": forms.cannot_compile},
)

CHECKPOINT: Final = record(
    Checkpoint,
    description=(
        "How the training saves itself before its process is stopped. One of signal, command and"
        " http asks for it; SIGTERM, the grace period and SIGKILL follow. With none of them"
        " SIGTERM itself is the request."
    ),
    fixed_because="the SideCar in the running container was started with it",
    default={},
    rules=CHECKPOINT_RULES,
    without=("memoryPath",),
    checks={"confirmLog": forms.cannot_compile},
)

BATCH: Final = record(
    BatchRange,
    description=(
        "Whether the global batch size may change with the number of GPUs; the learning"
        " rate then follows it."
    ),
    fixed_because="the training was started with its first batch size on this promise",
    rules=jobrules.BATCH_RULES,
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
            form=forms.TYPE_PART,
        ),
        "dataset": Text(
            description="The dataset that it is trained on, such as imagenet.",
            max_length=128,
            form=forms.TYPE_PART,
        ),
    },
)


# --- all of them, in the order in which people write them ---------------------------------

FIELDS: Final[Mapping[str, Kind]] = {
    "gpus": GPUS,
    "framework": OneOf(
        Framework,
        description=(
            "The framework by whose variables the processes learn their ranks and peers; none sets"
            " no variables."
        ),
        default=Framework.NONE.value,
        fixed_because="the running processes have found each other by its rules",
    ),
    "processes": OneOf(
        ("perGpu", "perNode"),
        description=(
            "Whether a training process is started for each GPU or for each node. If left out,"
            " perGpu; for framework none perNode, because its processes do not know their"
            " ranks, and would all do the same work and write the same files."
        ),
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
                form=forms.PROGRAM,
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
                    description="The name of a variable.", max_length=128, form=forms.VARIABLE
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
                items=Text(description="A module.", max_length=128, form=forms.MODULE),
            )
        },
    ),
    "liveSeconds": LIVE_SECONDS,
    "batch": BATCH,
    "managedBy": Text(
        description=(
            "The controller that manages the job, as on a Job of batch/v1. If left out, or"
            f" {OUR_CONTROLLER}, DLJob does. DLJob leaves a job of another controller alone:"
            " it gives the job no GPUs and does not write its status. It cannot change. On one machine"
            " it has no effect."
        ),
        max_length=63,
        form=forms.CONTROLLER,
    ),
    "priority": Whole(
        description="Jobs of a higher priority come first.",
        minimum=-(10**9),
        maximum=10**9,
        default=0,
    ),
    "suspend": Flag(
        description=(
            "True if the job gives its GPUs back, after a checkpoint, and waits until this is"
            " false again."
        ),
        default=False,
    ),
    "ttlSecondsAfterFinished": Whole(
        description="After this number of seconds DLJob removes a finished job; never if left out.",
        minimum=0,
        maximum=YEAR,
    ),
    "activeDeadlineSeconds": Whole(
        description="This number of seconds after its first GPUs DLJob stops the job as failed.",
        minimum=1,
        maximum=YEAR,
    ),
    "backoffLimit": Whole(
        description=(
            "How often the training may crash, or hang for progress.restartSeconds, and be started"
            " again before the job fails."
        ),
        minimum=0,
        maximum=1000,
        default=3,
    ),
}
