"""
Every field of a DLJob's spec but its pods: the one schema, as data.

Read from top to bottom it is the reference of the job file. :mod:`dlcore.documents.jobfile` checks documents
by it on all platforms, and the custom resource of Kubernetes is generated from it, descriptions
included, so that ``kubectl explain`` says what stands here. The pods are in
:mod:`dlcore.documents.podfields`, the document around the spec in :mod:`dlcore.documents.jobschema`, and conditions
over several fields in :mod:`dlcore.documents.jobrules`.

To add a field: one entry here, one field in :mod:`dlcore.model`, one line each way in
:mod:`dlcore.documents.jobfile`. Write descriptions that somebody can learn from.
"""

from collections.abc import Mapping
from typing import Final

from dlcore.documents import expressions, jobforms, jobrules
from dlcore.documents.records import Many, Record
from dlcore.documents.schemas import (
    Flag,
    Node,
    Number,
    Text,
)
from dlcore.model import Framework

MAX_GPUS: Final = 16_384
MAX_OPTIONS: Final = 64
DAY: Final = 86_400
YEAR: Final = 366 * DAY

_PATH_LENGTH: Final = 1024

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
            description="Instead of options: the largest number of GPUs.",
            minimum=1,
            maximum=MAX_GPUS,
        ),
        "requested": Number(
            description=(
                "The number that a scheduler without elasticity would give: one of the options;"
                " the largest if left out."
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
                "What CUDA_VISIBLE_DEVICES names: the index of a GPU in PCI bus order, or its UUID."
            ),
            max_length=8,
            choices=("index", "uuid"),
            default="index",
        ),
    },
)

# --- training -----------------------------------------------------------------------------

TRAINING: Final = Record(
    description=(
        "How long the job trains: a number of epochs or iterations, or until a target is reached,"
        " whose time is predicted from the curve so far. With both, the first of them counts. Or"
        " until its program ends, where its length is not known."
    ),
    required=True,
    remedy="say how long the job trains, such as training: {iterations: 10000}",
    fixed_because="what is left of it was predicted from it and is trained already in part",
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
                " ends with exit status 0. Policies suppose a length then; a known one is better."
            ),
            default=False,
        ),
        "batchSize": Number(
            description=(
                "The global batch size, over all GPUs. It stays the same whatever their number,"
                " unless batch.elastic allows otherwise."
            ),
            minimum=1,
            maximum=10**9,
        ),
        "target": Record(
            description="The value of a metric at which the job is done before its last iteration.",
            fields={
                "metric": Text(
                    description="The name of the metric, as progress reports it.",
                    required=True,
                    remedy="name the metric that progress reports, such as top5",
                    max_length=63,
                    form=jobforms.WORD,
                ),
                "value": Number(
                    description="The value to reach.",
                    required=True,
                    remedy="give the value to reach, such as 0.9",
                    whole=False,
                    minimum=-(10**9),
                    maximum=10**9,
                ),
                "patience": Number(
                    description="How often in a row it must be reached, to be no accident.",
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
        "What the job shares with jobs before it, so that their speeds and curves are known to it:"
        " with training.batchSize it is the key of the profile store."
    ),
    fixed_because="what has been measured of the job is filed under it",
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

PROGRESS: Final = Record(
    description=(
        "Where the progress of the training is read: exactly one of log, file and http. Training"
        " code need not change if it prints its steps already."
    ),
    fixed_because="the SideCar in the running container was started with it",
    rules=jobrules.PROGRESS_RULES,
    fields={
        "log": Text(
            description=(
                "A regular expression of Python, searched in each line that the training prints."
                " Its named group iteration (or epoch, or sample or token, see samplesPerIteration)"
                " tells the progress; other named groups are metrics."
            ),
            max_length=expressions.LONGEST,
            check=jobforms.cannot_compile,
        ),
        "file": Text(
            description=(
                "A file to which the training appends one JSON object a line, with iteration (or"
                " epoch) and any metrics."
            ),
            max_length=_PATH_LENGTH,
            form=jobforms.FOLDER,
        ),
        "http": Flag(
            description="Whether the training posts its progress to the SideCar over local HTTP.",
            default=False,
        ),
        "samplesPerIteration": Number(
            description=(
                "How many samples, or tokens, count as one iteration: the training tells them as"
                " sample or token in log, file or http, and its own steps do not count. For a batch"
                " per process, with which steps are larger on more GPUs."
            ),
            minimum=1,
            maximum=2**53,
        ),
        "stallSeconds": Number(
            description="After this number of seconds without progress the job is reported as"
            " stalled.",
            whole=False,
            minimum=1,
            maximum=30 * DAY,
            default=600,
        ),
        "restartSeconds": Number(
            description=(
                "After this number of seconds without progress the training is ended, unsaved"
                " because it hangs, and started again from its last checkpoint. That counts as a"
                " crash; backoffLimit says how many are allowed. If left out, it is only reported."
            ),
            whole=False,
            minimum=1,
            maximum=30 * DAY,
        ),
    },
)

# --- where it runs on one machine ----------------------------------------------------------

ENGINES: Final = ("podman", "docker")
"""The container engines that DLJob can use on one machine; the first installed one is the default."""

CONTAINER: Final = Record(
    description=(
        "On one machine: runs the SideCar and the training in a container, so that GPUs change while"
        " the container goes on. The container uses the network of the machine, and sees the folder that"
        " the job runs in, the folder of its checkpoints, and its `folders`."
    ),
    fields={
        "image": Text(
            description=(
                "The image, which must be on the machine already; the image of the template's trainer"
                " if left out. It needs a shell and Python 3.9 or newer, for the SideCar."
            ),
            max_length=512,
            form=jobforms.IMAGE,
        ),
        "engine": Text(
            description="The container engine: podman or docker; the first installed one if left out.",
            max_length=16,
            choices=ENGINES,
        ),
        "folders": Many(
            description=(
                "Folders of the machine, such as /data, that the container sees under the same"
                " paths."
            ),
            max_items=64,
            unique=True,
            items=Text(
                description="The path of a folder.",
                max_length=_PATH_LENGTH,
                form=jobforms.MOUNTED,
            ),
        ),
    },
)

# --- checkpoint ---------------------------------------------------------------------------

CHECKPOINT_SIGNS: Final = (
    "auto",
    "settled",
    "rename",
    "marker",
    "huggingface",
    "accelerate",
    "dcp",
    "lightning",
    "keras",
    "tensorflow",
    "deepspeed",
    "megatron",
)

CHECKPOINT: Final = Record(
    description=(
        "How the training saves itself before its process is stopped. One of signal, command and"
        " http asks for it; SIGTERM, the grace period and SIGKILL follow. With none of them"
        " SIGTERM itself is the request."
    ),
    fixed_because="the SideCar in the running container was started with it",
    default={},
    rules=jobrules.CHECKPOINT_RULES,
    fields={
        "signal": Text(
            description="The signal that asks for a checkpoint, such as SIGUSR1.",
            max_length=16,
            check=jobforms.not_a_signal,
            form=jobforms.SIGNAL,
        ),
        "command": Many(
            description="A command, run in the training container, that makes a checkpoint.",
            remedy='write a list of its words, such as ["python", "save.py"]',
            min_items=1,
            max_items=64,
            items=Text(description="A word of the command.", min_length=0, max_length=4096),
        ),
        "http": Text(
            description=(
                "A path that is requested by POST from the training process; a port may stand"
                " before it."
            ),
            max_length=_PATH_LENGTH,
            form=jobforms.URL_PATH,
        ),
        "to": Text(
            description="The processes that are asked: that of rank 0, or all of them.",
            max_length=8,
            choices=("leader", "all"),
            default="leader",
        ),
        "confirm": Text(
            description=(
                "How DLJob sees that it is written: a new checkpoint under path, a line in the log"
                " that confirmLog finds, or the exit of the process."
            ),
            max_length=8,
            choices=("file", "log", "exit"),
            default="exit",
        ),
        "confirmLog": Text(
            description=(
                "With confirm: log, the regular expression of Python that finds the confirming"
                " line."
            ),
            max_length=expressions.LONGEST,
            check=jobforms.cannot_compile,
        ),
        "path": Text(
            description=(
                "The folder that checkpoints are written to, as the training sees it."
                " $(DLJOB_CHECKPOINT_DIR) stands for the job's own: on one machine it is made and removed"
                " with the job; on a cluster the env of the trainer's container says where it is."
            ),
            max_length=_PATH_LENGTH,
            form=jobforms.FOLDER,
        ),
        "files": Text(
            description=(
                "Which files or folders below path are one checkpoint each, as a pattern: checkpoint-*,"
                " *.pt, logs/**/*.ckpt. If left out, a framework's own names, or all of path together."
                " Logs beside them never count."
            ),
            max_length=_PATH_LENGTH,
            form=jobforms.PATTERN,
        ),
        "complete": Text(
            description=(
                "How DLJob sees that a checkpoint is complete: by the marks of a framework"
                " (huggingface, accelerate, dcp, lightning, keras, tensorflow, deepspeed,"
                " megatron), by a file that is written last (marker), by its name (rename), or"
                " because its files have not changed for long enough (settled). auto takes the"
                " marks that it recognises, else settled."
            ),
            max_length=16,
            choices=CHECKPOINT_SIGNS,
            default="auto",
        ),
        "marker": Text(
            description=(
                "With complete: marker, the name of the file that is written last, into the folder of"
                " the checkpoint or into path, and that holds at least one byte. If left out,"
                " .dljob-complete."
            ),
            max_length=128,
            form=jobforms.FILE_NAME,
        ),
        "settleSeconds": Number(
            description=(
                "The number of seconds without a change after which an unmarked checkpoint counts"
                " as complete. If left out, it follows from the job's former checkpoints, with 2"
                " for the first."
            ),
            whole=False,
            minimum=0,
            maximum=DAY,
        ),
        "shared": Flag(
            description=(
                "Whether path is the same folder on every node. If not, the job never moves to"
                " another node once it has trained."
            ),
            default=False,
        ),
        "trusted": Flag(
            description=(
                "Whether the job loses nothing when it is stopped, although no checkpoint of it was"
                " confirmed, as training that saves each step by itself. A job without a checkpoint"
                " that works keeps the GPUs it starts with."
            ),
            default=False,
        ),
        "timeoutSeconds": Number(
            description="After this number of seconds a checkpoint is given up and the process"
            " stopped.",
            whole=False,
            minimum=0,
            maximum=DAY,
            default=60,
        ),
        "graceSeconds": Number(
            description="The number of seconds between SIGTERM and SIGKILL.",
            whole=False,
            minimum=0,
            maximum=3600,
            default=10,
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
        fixed_because="the running processes were told of each other in its way",
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
                max_length=_PATH_LENGTH,
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
                    description="The name of a variable.",
                    max_length=128,
                    form=jobforms.VARIABLE,
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
            ),
        },
    ),
    "batch": Record(
        description=(
            "Whether the global batch size may change with the number of GPUs; the learning"
            " rate then follows it."
        ),
        fixed_because="the training was started with its first batch size on this promise",
        rules=jobrules.BATCH_RULES,
        fields={
            "elastic": Flag(description="Whether it may change.", default=False),
            "max": Number(
                description="The largest global batch size that still converges.",
                minimum=1,
                maximum=10**9,
            ),
        },
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
        description="After this number of seconds a finished job is removed; never if left out.",
        minimum=0,
        maximum=YEAR,
    ),
    "activeDeadlineSeconds": Number(
        description="This number of seconds after its first GPUs the job is stopped as failed.",
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
