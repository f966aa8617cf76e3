"""
Every field of a DLJob: the one schema, as data.

Read from top to bottom it is the reference of the job file. :mod:`dlcore.jobfile` checks documents
by it on all platforms, and the custom resource of Kubernetes is generated from it, descriptions
included, so that ``kubectl explain`` says what stands here. Conditions over several fields are in
:mod:`dlcore.jobrules`.

To add a field: one entry here, one field in :mod:`dlcore.model`, one line each way in
:mod:`dlcore.jobfile`. Keep sentences such that somebody can learn from them.
"""

import re
from typing import Final

from dlcore import jobrules
from dlcore.model import Framework, Phase
from dlcore.problems import nearest, shown
from dlcore.records import Many, Record, Words
from dlcore.schemas import Complaint, Flag, Form, Node, Number, Quantity, Text

API_VERSION: Final = "dljob.io/v1alpha1"
KIND: Final = "DLJob"

SUBMIT_AT: Final = "dljob.io/submit-at"
ANNOTATIONS: Final = (SUBMIT_AT,)
"""All annotations of ours that a user may write."""

MAX_GPUS: Final = 16_384
MAX_OPTIONS: Final = 64
DAY: Final = 86_400
YEAR: Final = 366 * DAY

# Signals that a process can handle, by the names of Linux.
SIGNALS: Final = (
    "SIGHUP SIGINT SIGQUIT SIGUSR1 SIGUSR2 SIGALRM SIGTERM SIGCONT SIGTSTP SIGTTIN SIGTTOU SIGURG"
    " SIGXCPU SIGXFSZ SIGVTALRM SIGPROF SIGWINCH SIGIO SIGPWR SIGTRAP SIGABRT"
).split()


# --- what strings look like ---------------------------------------------------------------


def _as_label(text: str) -> str:
    """Turn a name into the nearest one that Kubernetes takes."""
    name = re.sub(r"[^a-z0-9]+", "-", text.lower())[:63].strip("-")
    return f"write {name}" if name else "give a name such as resnet18-imagenet"


_LABEL = Form(
    r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?",
    "is not a name of Kubernetes: at most 63 small letters, digits and '-', first and last no '-'",
    _as_label,
)
_LABEL_KEY = Form(
    r"([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?",
    "is no name of a label or annotation",
    lambda _: "give letters, digits, '-', '_' and '.', with a domain and '/' before it if you like",
)
_LABEL_VALUE = Form(
    r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?",
    "is no value of a label",
    lambda _: "give at most 63 letters, digits, '-', '_' and '.', first and last a letter or digit",
)
_GPU_TYPE = Form(
    r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?",
    "is no type of GPU",
    lambda _: "give one type an item, such as V100 or NVIDIA-H200",
)
_WORD = Form(
    r"[A-Za-z_][A-Za-z0-9_]*",
    "is no name of a metric",
    lambda _: "give letters, digits and '_', such as top5",
)
_MODULE = Form(
    r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*",
    "is no name of a Python module",
    lambda _: "write it as after import, such as torch or torch.distributed",
)
_FOLDER = Form(
    r"/[^\x00-\x1f]*",
    "is not an absolute path",
    lambda text: "begin it with /, as the training process sees it",
)
_URL_PATH = Form(
    r"(:[1-9][0-9]{0,4})?/[!-~]*",
    "is not a path of HTTP",
    lambda _: "begin it with /, or with a port: :8080/checkpoint",
)
_TYPE_PART = Form(
    r"[!-~]([ -~]*[!-~])?",
    "holds characters that are not plain",
    lambda _: "give letters, digits and signs of ASCII, without spaces around them",
)
_SECONDS = Form(
    r"[0-9]+(\.[0-9]+)?([eE][-+]?[0-9]{1,2})?",
    "is not a number of seconds",
    lambda _: 'give seconds since the begin of the simulation, such as "90"',
)


def _cannot_compile(text: str) -> Complaint | None:
    """Complain about a regular expression that Python cannot compile."""
    try:
        re.compile(text)
    except (re.error, OverflowError, RecursionError) as error:
        wrong = f"{shown(text)} is not a regular expression of Python ({error})"
        return Complaint(wrong, "correct it, and write it in single quotes in YAML")
    return None


def _not_a_signal(text: str) -> Complaint | None:
    """Complain about a signal that does not exist, or that would save nothing."""
    if text in SIGNALS:
        return None
    name = text.upper().removeprefix("SIG")
    if name in {"KILL", "STOP"}:
        deadly = f"{shown(text)} cannot be handled by a process, so nothing would be saved"
        return Complaint(deadly, "use SIGUSR1 or another that your training handles")
    full = f"SIG{name}"
    guess = full if full in SIGNALS else nearest(full, SIGNALS)
    remedy = f"did you mean {guess}?" if guess else "write it like SIGUSR1"
    return Complaint(f"{shown(text)} is not a signal that a process can handle", remedy)


def _unknown_annotation(text: str) -> bool:
    return text.startswith("dljob.io/") and text not in ANNOTATIONS


_EXPRESSION_LENGTH: Final = 1024
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
            min_items=1,
            max_items=MAX_OPTIONS,
            unique=True,
            items=Number(
                description="A number of GPUs that the job can run on.",
                minimum=1,
                maximum=MAX_GPUS,
                remedy="give counts of at least 1" f" and at most {MAX_GPUS:,}",
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
                "What a scheduler that cannot change the number would give: one of the options;"
                " the largest if left out."
            ),
            minimum=1,
            maximum=MAX_GPUS,
        ),
        "types": Many(
            description=(
                "Types of GPUs that will do, the best liked first; any if left out. Speeds are"
                " known for each type apart."
            ),
            min_items=1,
            max_items=16,
            unique=True,
            items=Text(description="A type of GPU.", max_length=63, form=_GPU_TYPE),
        ),
        "mixed": Flag(
            description="Whether GPUs of different types may work for the job at the same time.",
            default=False,
        ),
        "maxNodes": Number(
            description=(
                "Over how many nodes the job may spread. If left out there is no limit, but for"
                " framework none it is 1, because nothing would tell its processes of each other."
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
        " whose time is predicted from the curve so far. With both, whatever comes first."
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
                    form=_WORD,
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
            form=_TYPE_PART,
        ),
        "dataset": Text(
            description="The dataset that it is trained on, such as imagenet.",
            max_length=128,
            form=_TYPE_PART,
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
                " Its named group iteration (or epoch) tells the progress; other named groups are"
                " metrics."
            ),
            max_length=_EXPRESSION_LENGTH,
            check=_cannot_compile,
        ),
        "file": Text(
            description=(
                "A file to which the training appends one JSON object a line, with iteration (or"
                " epoch) and any metrics."
            ),
            max_length=_PATH_LENGTH,
            form=_FOLDER,
        ),
        "http": Flag(
            description="Whether the training posts its progress to the SideCar over local HTTP.",
            default=False,
        ),
        "stallSeconds": Number(
            description="After so many seconds without progress the job is said to stand still.",
            whole=False,
            minimum=1,
            maximum=30 * DAY,
            default=600,
        ),
    },
)

# --- checkpoint ---------------------------------------------------------------------------

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
            check=_not_a_signal,
        ),
        "command": Many(
            description="A command, run in the training container, that makes a checkpoint.",
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
            form=_URL_PATH,
        ),
        "to": Text(
            description="Who is asked: the process of rank 0, or all of them.",
            max_length=8,
            choices=("leader", "all"),
            default="leader",
        ),
        "confirm": Text(
            description=(
                "How one sees that it is written: a new file under path, a line in the log that"
                " confirmLog finds, or the exit of the process."
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
            max_length=_EXPRESSION_LENGTH,
            check=_cannot_compile,
        ),
        "path": Text(
            description="The folder that checkpoints are written to, as the training sees it.",
            max_length=_PATH_LENGTH,
            form=_FOLDER,
        ),
        "shared": Flag(
            description=(
                "Whether path is the same folder on every node. If not, the job never moves to"
                " another node once it has trained."
            ),
            default=False,
        ),
        "timeoutSeconds": Number(
            description="After so many seconds a checkpoint is given up and the process stopped.",
            whole=False,
            minimum=0,
            maximum=DAY,
            default=60,
        ),
        "graceSeconds": Number(
            description="How many seconds pass between SIGTERM and SIGKILL.",
            whole=False,
            minimum=0,
            maximum=3600,
            default=10,
        ),
    },
)

# --- pods ---------------------------------------------------------------------------------

_COMMAND = Many(
    description=(
        "The program and its arguments. The trainer must have one, because the SideCar starts it"
        " and cannot see what its image would start."
    ),
    min_items=1,
    max_items=256,
    items=Text(description="A word of the command.", min_length=0, max_length=65_536),
)
_RESOURCES = Record(
    description="What the container needs besides GPUs, as in any pod.",
    open=True,
    fields={
        part: Record(
            description=description,
            open=True,
            fields={
                "nvidia.com/gpu": Quantity(
                    description="Not to be used: spec.gpus says how many GPUs the job gets."
                )
            },
        )
        for part, description in (
            ("limits", "The most that the container may use."),
            ("requests", "What is set aside for the container."),
        )
    },
)
_ENV = Many(
    description="Environment variables, as in any pod, but for those that name GPUs.",
    max_items=1024,
    key="name",
    items=Record(
        description="An environment variable.",
        open=True,
        fields={
            "name": Text(
                description="The name of the variable.",
                required=True,
                remedy="give it a name",
                max_length=256,
            ),
        },
    ),
)
_NAME = Text(
    description='The name of the container; the one named "trainer" is supervised.',
    required=True,
    remedy="give it a name",
    max_length=63,
    form=_LABEL,
)
_PROBES: Final[dict[str, Node]] = {
    "livenessProbe": Record(
        description="Not on the trainer: it would be killed at each change of its GPUs.", open=True
    ),
    "startupProbe": Record(
        description="Not on the trainer: it would be killed at each change of its GPUs.", open=True
    ),
}
_ANY_CONTAINER = Record(
    description="A container beside the training, unchanged as in any pod.",
    noun="the container",
    open=True,
    rules=jobrules.CONTAINER_RULES,
    fields={"name": _NAME, "env": _ENV, "resources": _RESOURCES},
)
_TRAINING_CONTAINER = Record(
    description="A container of the pod; the one named trainer runs the training.",
    noun="the container",
    open=True,
    rules=(*jobrules.CONTAINER_RULES, *jobrules.TRAINER_RULES),
    fields={
        "name": _NAME,
        "command": _COMMAND,
        "env": _ENV,
        "resources": _RESOURCES,
        **_PROBES,
    },
)


def _containers(item: Record, description: str, *, required: bool) -> Many:
    return Many(
        description=description,
        required=required,
        remedy="give the containers of the pod",
        min_items=int(required),
        max_items=64,
        key="name",
        items=item,
    )


def _template(description: str, *, trains: bool, required: bool) -> Record:
    """Build the schema of a PodTemplateSpec, of which only what rules need is looked into."""
    spec = Record(
        description="The pod, as in any other workload of Kubernetes.",
        required=True,
        remedy="give the pod, with its containers",
        open=True,
        rules=jobrules.POD_RULES if trains else jobrules.AUXILIARY_POD_RULES,
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
            "nodeName": Text(
                description="Not to be used: DLJob chooses the nodes.", max_length=253
            ),
        },
    )
    return Record(
        description=description,
        required=required,
        remedy="give a pod template",
        fixed_because="the pods of the job were made from it",
        fields={
            "metadata": Record(description="Labels and annotations of the pods.", open=True),
            "spec": spec,
        },
    )


def _auxiliaries(*, runs: bool) -> Many:
    return Many(
        description=(
            "Pods without GPUs that belong to the job, such as parameter servers. They start and"
            " end with it."
        ),
        max_items=16,
        key="name",
        fixed_because="their pods are part of the running gang",
        items=Record(
            description="A role beside the training.",
            noun="the auxiliary",
            rules=jobrules.AUXILIARY_RULES,
            fields={
                "name": Text(
                    description="The name of the role, such as ps.",
                    required=True,
                    remedy="give it a name, such as ps",
                    max_length=63,
                    form=_LABEL,
                ),
                "replicas": Number(
                    description="How many pods of it there are.",
                    minimum=1,
                    maximum=1000,
                    default=1,
                ),
                "template": _template("The pod of this role.", trains=False, required=runs),
            },
        ),
    )


# --- the spec, and the document around it -------------------------------------------------


def _spec(*, runs: bool) -> Record:
    fields: dict[str, Node] = {
        "gpus": GPUS,
        "framework": Text(
            description=(
                "How ranks and peers are told to the training processes: in the way of this"
                " framework; none tells nothing."
            ),
            max_length=16,
            choices=tuple(framework.value for framework in Framework),
            default=Framework.NONE.value,
            fixed_because="the running processes were told of each other in its way",
        ),
        "processes": Text(
            description="Whether a training process is started for each GPU or for each node.",
            max_length=8,
            choices=("perGpu", "perNode"),
            default="perGpu",
            fixed_because="the SideCar in the running container was started with it",
        ),
        "training": TRAINING,
        "profile": PROFILE,
        "progress": PROGRESS,
        "checkpoint": CHECKPOINT,
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
                    items=Text(description="A module.", max_length=128, form=_MODULE),
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
            description="After so many seconds a finished job is removed; never if left out.",
            minimum=0,
            maximum=YEAR,
        ),
        "activeDeadlineSeconds": Number(
            description="After so many seconds since its first GPUs the job is stopped and failed.",
            minimum=1,
            maximum=YEAR,
        ),
        "backoffLimit": Number(
            description="How often the training may crash and be started again before it failed.",
            minimum=0,
            maximum=1000,
            default=3,
        ),
        "auxiliaries": _auxiliaries(runs=runs),
        "template": _template(
            "The pod that trains, as in any other workload. Its container named trainer gets the"
            " GPUs and is supervised; the rest of it is used as it is.",
            trains=True,
            required=runs,
        ),
    }
    return Record(
        description="What the user wants of the job.",
        required=True,
        remedy="say what to run, beginning with gpus and training",
        rules=jobrules.SPEC_RULES,
        fields=fields,
    )


# What else the API server keeps in the metadata of an object; it is nothing to us.
_FOREIGN_METADATA: Final = (
    "creationTimestamp deletionGracePeriodSeconds deletionTimestamp finalizers generateName"
    " generation managedFields ownerReferences resourceVersion selfLink uid"
).split()

NAME: Final = Text(
    description="The name of the job, also of its pods.",
    required=True,
    remedy="give the job a name, such as resnet18-imagenet",
    max_length=253,
    form=_LABEL,
)


def _metadata() -> Record:
    foreign: dict[str, Node] = {
        name: Record(description="Kept by Kubernetes.", open=True) for name in _FOREIGN_METADATA
    }
    return Record(
        description="The name of the job and what else is attached to it.",
        required=True,
        remedy="give the job a name: metadata: {name: resnet18-imagenet}",
        fields={
            "name": NAME,
            "namespace": Text(
                description="The namespace that the job belongs to.", max_length=253, form=_LABEL
            ),
            "labels": Words(
                description="Names by which jobs are selected.",
                keys=_LABEL_KEY,
                max_items=256,
                values=Text(
                    description="The value of a label.",
                    min_length=0,
                    max_length=253,
                    form=_LABEL_VALUE,
                ),
            ),
            "annotations": Record(
                description="Notes to the job.",
                open=True,
                fields={
                    SUBMIT_AT: Text(
                        description="In a simulation: when the job is submitted, in seconds.",
                        max_length=32,
                        form=_SECONDS,
                        remedy='write it in quotes, such as "90"',
                    )
                },
            ),
            **foreign,
        },
    )


def build(*, runs: bool) -> Record:
    """Build the schema of a document; where it ``runs`` for real, it must have a pod template."""
    return Record(
        description=(
            "A training job that can run on several numbers of GPUs. DLJob gives it GPUs when it"
            " arrives, takes some away when others profit more from them, and gives more when they"
            " are idle."
        ),
        fields={
            "apiVersion": Text(
                description="The version of this schema.",
                required=True,
                remedy=f"write apiVersion: {API_VERSION}",
                max_length=32,
                choices=(API_VERSION,),
            ),
            "kind": Text(
                description="What the document is.",
                required=True,
                remedy=f"write kind: {KIND}",
                max_length=16,
                choices=(KIND,),
            ),
            "metadata": _metadata(),
            "spec": _spec(runs=runs),
            "status": Record(
                description="How the job is doing. Written by DLJob, and by nobody else.",
                open=True,
                fields={
                    "phase": Text(
                        description="Where in its life the job is.",
                        max_length=16,
                        choices=tuple(phase.value for phase in Phase),
                    )
                },
            ),
        },
    )


SIMULATED: Final = build(runs=False)
RUNNABLE: Final = build(runs=True)
