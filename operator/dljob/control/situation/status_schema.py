"""
The schema of a DLJob's status for Kubernetes: every field, with its bounds and its description.

It is written in the same language as the schema of the spec. :mod:`dljob.control.situation.status_documents` writes the
fields that :class:`~dljob.control.situation.status.Status` has, and the operator adds the others (epoch, revision,
queue, shown, history). A test compares the schema with a document field by field, because the API server silently
drops unknown fields.
"""

from typing import Final

from dljob.control.situation.status import Trust
from dljob.core.documents.jobfields import MAX_GPUS
from dljob.core.model import CauseCode, Phase
from dljob_wire.kinds import Flag, Form, Kind, Many, Number, OneOf, Record, Text, Whole

LONGEST_MESSAGE: Final = 4096
LONGEST_HISTORY_MESSAGE: Final = 1024
KEPT_HISTORY: Final = 10
MOST_NODES: Final = 4096
"""As many as a job may spread over, or be bound to."""
MOST_PODS: Final = 8192
"""A pod for each node, and those before them that are not proven to have ended."""
MOST_CONDITIONS: Final = 32
MANY: Final = 2**53
"""The largest whole number that every reader of JSON reads alike."""

_TIME: Final = Form(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]+)?Z",
    "is no time",
    lambda _: "write it as 2026-01-31T12:00:00Z",
)
# As in metav1.Condition, so that any tool that reads conditions reads ours.
_CONDITION_TYPE: Final = Form(
    r"([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?"
    r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])",
    "is no type of a condition",
    lambda _: "write it in CamelCase",
)
_REASON: Final = Form(
    r"[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?",
    "is no reason of a condition",
    lambda _: "write it in CamelCase",
)


def _time(description: str, *, required: bool = False) -> Text:
    return Text(
        description=description, required=required, max_length=40, form=_TIME, is_for_programs=True
    )


def _count(description: str, *, required: bool = False) -> Whole:
    return Whole(description=description, required=required, minimum=0, maximum=MANY)


def _amount(description: str, *, least: float = 0) -> Number:
    return Number(
        description=description,
        minimum=least,
        maximum=MANY,
    )


def _node(description: str = "The name of the node.") -> Text:
    return Text(description=description, required=True, max_length=253)


def _slices(description: str) -> Many:
    return Many(
        description=description,
        max_items=MOST_NODES,
        items=Record(
            description="GPUs of one node.",
            fields={
                "name": _node(),
                "gpuIds": Many(
                    description="Their numbers on that node, in PCI bus order.",
                    required=True,
                    max_items=128,
                    items=Whole(description="The number of a GPU.", minimum=0, maximum=1023),
                ),
            },
        ),
    )


_ALLOCATION: Final = Record(
    description="The GPUs that DLJob has decided to give to the job. Recorded before it acts on the decision.",
    fields={
        "generation": _count(
            "The number of this decision about its GPUs; it also rises with each attempt after a crash."
        ),
        "gpus": Whole(description="How many GPUs the job has.", minimum=0, maximum=MAX_GPUS),
        "decidedAt": _time("When DLJob decided this."),
        "saves": Flag(
            description="Whether the training writes a checkpoint before it gives up its former GPUs."
        ),
        "nodes": _slices("Which GPUs on which nodes."),
        "gpuType": Text(description="The type of these GPUs.", min_length=0, max_length=63),
        "gang": _count("The size of the whole gang, while the job gets its GPUs one by one."),
        "adopted": _count(
            "The earlier generation whose processes continue to run, because they fit this decision."
        ),
        "shaped": _count("The generation that last changed its GPUs."),
        "running": _count("The generation whose processes were last seen running."),
        "containers": _count(
            "Over how many containers the processes of that generation were spread."
        ),
        "broken": _count("The last generation that lost a process or a container."),
        "ended": Record(
            description="Containers whose processes all ended with status 0, and whose pods ended before "
            "the other pods of the job.",
            fields={
                "start": _count("The generation that they were a part of."),
                "containers": _count("How many containers these are."),
                "unasked": _count("How many of them ended before DLJob asked them to."),
            },
        ),
        "batchSize": _count("The global batch size, if it may change with the number of GPUs."),
    },
)

_PROGRESS: Final = Record(
    description="How far the training is. Written at each percent, and at least once a minute.",
    fields={
        "iteration": _count("The last reported training step."),
        "iteratedAt": _time("When the training reported this step."),
        "lap": _count(
            "After how many iterations the training's own counter begins again, if it does."
        ),
        "lapped": _count(
            "The iterations of whole laps before those that the SideCar of this start counts."
        ),
        "iterationsPerSecond": _amount("Training speed."),
        "gpuSeconds": _amount("The GPU time that the job has used, in seconds of one GPU."),
        "countedAt": _time("The time up to which gpuSeconds is counted."),
        "iterationsTotal": _amount(
            "How many iterations the training needs, if that is known or predicted."
        ),
        "fraction": Number(
            description="The fraction of the training that is done.",
            minimum=0,
            maximum=1,
        ),
        "etaSeconds": _count("In how many seconds the training is expected to finish."),
        "etaLowSeconds": _count("The lower bound of that expectation."),
        "etaHighSeconds": _count("The upper bound of that expectation."),
        "metric": _amount("The last reported value of the target's metric.", least=-MANY),
        "reached": _count("How many reports in a row have reached the target."),
    },
)

_QUEUE: Final = Record(
    description="The place of the job in the queue. Written when it changes by a tenth.",
    fields={
        "ahead": _count("How many queued jobs start before this one."),
        "expectedStart": _time(
            "When the job starts, if running jobs end as predicted and no new job is submitted."
        ),
        "unknownBecause": Text(
            description="Why the expected start is unknown.", max_length=LONGEST_HISTORY_MESSAGE
        ),
    },
)

_CONDITIONS: Final = Many(
    description="Conditions of the job beyond its phase, each with a reason.",
    max_items=MOST_CONDITIONS,
    key="type",
    items=Record(
        description="A standard Kubernetes condition, for kubectl wait --for=condition.",
        fields={
            "type": Text(
                description="The type of the condition, in CamelCase.",
                required=True,
                max_length=316,
                form=_CONDITION_TYPE,
                is_for_programs=True,
            ),
            "status": OneOf(
                ("True", "False", "Unknown"),
                description="Whether the condition holds.",
                required=True,
            ),
            "observedGeneration": _count(
                "The generation of the spec that the condition is based on."
            ),
            "lastTransitionTime": _time(
                "When the status of the condition last changed.", required=True
            ),
            "reason": Text(
                description="The reason, in CamelCase, for programs.",
                required=True,
                max_length=1024,
                form=_REASON,
                is_for_programs=True,
            ),
            "message": Text(
                description="The reason in a sentence, for people.",
                required=True,
                min_length=0,
                max_length=LONGEST_MESSAGE,
            ),
        },
    ),
)

_HISTORY: Final = Many(
    description="The latest decisions about the job and its end, oldest first.",
    max_items=KEPT_HISTORY,
    items=Record(
        description="One decision.",
        fields={
            "at": _time("When DLJob decided this."),
            "kind": Text(
                description="start, reshape, move, restart, stop, wait, completed or failed.",
                required=True,
                max_length=16,
            ),
            "message": Text(
                description="The decision and its reason in a sentence.",
                max_length=LONGEST_HISTORY_MESSAGE,
            ),
            "cause": Text(description="The reason as a code, for programs.", max_length=64),
            "generation": _count("The generation of this decision."),
            "gpusBefore": Whole(
                description="How many GPUs the job had before.", minimum=0, maximum=MAX_GPUS
            ),
            "gpus": Whole(description="How many GPUs the job got.", minimum=0, maximum=MAX_GPUS),
            "nodesBefore": _slices(
                "The GPUs that the job had before; left out for very many nodes."
            ),
            "nodes": _slices("The GPUs that the job got; left out for very many nodes."),
            "costSeconds": _amount("For how many seconds the change interrupted the training."),
            "how": Text(
                description="live if its processes stayed, or restarted; left out while it is not known.",
                max_length=16,
            ),
        },
    ),
)

_SHOWN: Final = Record(
    description="Progress and GPUs as text for people: the columns of kubectl get.",
    fields={
        name: Text(description=description, max_length=LONGEST_MESSAGE)
        for name, description in (
            ("progress", "How much of the training is done."),
            ("speed", "Training speed."),
            ("eta", "The expected time until the training finishes."),
            ("allocation", "The GPUs of the job, by node."),
        )
    },
)

_FIELDS: Final[dict[str, Kind]] = {
    "epoch": _count(
        "The epoch of the operator that wrote this status; it rises with each new leader."
    ),
    "revision": _count("How many times DLJob has written this status."),
    "observedGeneration": _count("The generation of the spec that this status is based on."),
    "phase": OneOf(
        tuple(phase.value for phase in Phase),
        description="The phase of the job.",
    ),
    "message": Text(
        description="The job's present activity and the reason, or how it ended.",
        max_length=LONGEST_MESSAGE,
    ),
    "selector": Text(
        description="The label selector of the pods that train, which the scale subresource shows.",
        max_length=512,
    ),
    "allocation": _ALLOCATION,
    "progress": _PROGRESS,
    "queue": _QUEUE,
    "shown": _SHOWN,
    "history": _HISTORY,
    "pods": Many(
        description="The pods that DLJob has booked for the job and that are not proven to have ended.",
        max_items=MOST_PODS,
        items=Record(
            description="One booked pod.",
            fields={
                "node": _node("The node of the pod."),
                "serial": _count(
                    "The number of this pod among all pods that the job ever had.", required=True
                ),
                "shaped": _count(
                    "The generation that had last changed the job's GPUs when the pod was booked."
                ),
                "used": Flag(
                    description="Whether the pod was up, so that processes may have run in it."
                ),
            },
        ),
    ),
    "podsBooked": _count("How many pods the job has had in total."),
    "podsBookedAt": _time("When pods were last booked for the job."),
    "leftover": _slices("GPUs of former decisions whose release is not yet proven."),
    "cause": Record(
        description="Why the job has its GPUs, or why it waits, as a code for programs.",
        fields={
            "code": OneOf(
                tuple(code.value for code in CauseCode),
                description="The code of the reason.",
                required=True,
            ),
            "job": Text(
                description="The other job that the reason names, if any.",
                min_length=0,
                max_length=512,
            ),
            "gpus": Whole(
                description="The number of GPUs that the reason names.", minimum=0, maximum=MANY
            ),
        },
    ),
    "submittedAt": _time("When DLJob first saw the job."),
    "startedAt": _time("When DLJob first decided to give the job GPUs."),
    "finishedAt": _time("When the job completed or failed."),
    "retryAt": _time("The earliest time of the next attempt after a crash."),
    "boundTo": Many(
        description="The nodes that hold its checkpoint, if other nodes cannot read it.",
        max_items=MOST_NODES,
        items=_node(),
    ),
    "checkpoint": Record(
        description="The state of the job's checkpoints, and the work that was lost.",
        fields={
            "trust": OneOf(
                tuple(trust.value for trust in Trust),
                description="Whether DLJob trusts its checkpoints.",
            ),
            "iteration": _count("The last iteration that is known to be in a checkpoint."),
            "savedAt": _time("When a checkpoint was last confirmed."),
            "judged": _count("The last generation whose checkpoint DLJob has judged."),
            "trials": _count("How many requests for a checkpoint in a row had no result."),
            "tried": _count(
                "The last trial of a checkpoint, made without a stop, that DLJob has judged."
            ),
            "triable": Flag(description="Whether DLJob can try its checkpoint while it trains."),
            "ends": Flag(description="Whether the training ended or stalled after such a trial."),
            "failedAt": _time("When a checkpoint was last found not to work."),
            "heard": _count("The last generation whose processes reported progress."),
            "pace": _amount("The last known training speed."),
            "lostIterations": _count(
                "How many iterations the training has repeated after restarts."
            ),
            "lostSeconds": _amount("How much time the lost iterations had taken."),
        },
    ),
    "live": Record(
        description="Changes of its GPUs in which its processes stay.",
        fields={
            "trust": OneOf(
                tuple(trust.value for trust in Trust),
                description="Whether DLJob makes such changes.",
            ),
            "tried": _count("The last trial of such a change that DLJob has judged."),
            "failures": _count("How many trials and changes of this kind failed."),
            "failedIn": _count("The generation in which the last of them failed."),
            "changes": _count("How many changes of this kind the job has gone through."),
            "seconds": _amount("For how many seconds they paused the training in total."),
        },
    ),
    "failures": _count("How many times its processes failed."),
    "restarts": _count(
        "How many times the job restarted for a reason outside of it, such as a lost node."
    ),
    "setbacks": _count("How many starts in a row failed for such a reason."),
    "reshapes": _count("How many times DLJob changed its GPUs while it trained."),
    "reshapeSeconds": _amount("For how many seconds such changes interrupted the training."),
    "pausedAt": _time("When the current change of its GPUs interrupted the training."),
    "exitCode": Whole(
        description="The exit code of the training; above 128 a signal ended it.",
        minimum=-255,
        maximum=255,
    ),
    "conditions": _CONDITIONS,
}

STATUS: Final = Record(description="The state of the job. Only DLJob writes it.", fields=_FIELDS)
