"""
Every field of a DLJob's status, as Kubernetes is told of it: bounded, and described to its readers.

Written in the same language as the spec. What is here is what :mod:`dlcontrol.situation.status_documents` writes and
:mod:`dloperator.jobs.columns` adds; a test compares the two field by field, because the API server silently drops what it was not told of.
"""

from typing import Final

from dlcontrol.situation.status import Trust
from dlcore.documents.jobfields import MAX_GPUS
from dlcore.documents.records import Many, Record
from dlcore.documents.schemas import (
    Flag,
    Form,
    Node,
    Number,
    Text,
)
from dlcore.model import CauseCode, Phase
from dloperator.jobs import history

LONGEST_MESSAGE: Final = 4096
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
# As metav1.Condition has them, so that whatever reads conditions reads ours.
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


def _count(description: str, *, required: bool = False) -> Number:
    return Number(description=description, required=required, minimum=0, maximum=MANY)


def _amount(description: str, *, least: float = 0) -> Number:
    return Number(description=description, minimum=least, maximum=MANY, whole=False)


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
                    items=Number(description="The number of a GPU.", minimum=0, maximum=1023),
                ),
            },
        ),
    )


_ALLOCATION: Final = Record(
    description="Which GPUs were decided for the job. Recorded before anything is done about it.",
    fields={
        "generation": _count(
            "Counts the decisions about its GPUs, and the attempts after crashes."
        ),
        "gpus": Number(description="How many GPUs that are.", minimum=0, maximum=MAX_GPUS),
        "decidedAt": _time("When this was decided."),
        "saves": Flag(
            description="Whether the training saves itself before it gives up what it had before."
        ),
        "nodes": _slices("Which GPUs on which nodes."),
        "gpuType": Text(description="The type of these GPUs.", min_length=0, max_length=63),
        "gang": _count("While GPUs are gathered one by one: of how many the whole gang is."),
        "adopted": _count("A start of its processes for an earlier decision that fits this one."),
        "shaped": _count("The generation in which its GPUs were changed last."),
        "running": _count("The start of its processes that was last seen running."),
        "containers": _count("Over how many containers that start was."),
        "broken": _count("The last start of which a process or container was lost."),
        "batchSize": _count("The global batch size, where it may change with the number of GPUs."),
    },
)

_PROGRESS: Final = Record(
    description="How far the training is. Written at each percent, and at least once a minute.",
    fields={
        "iteration": _count("The training step that was reported last."),
        "iteratedAt": _time("When it was seen to be that."),
        "iterationsPerSecond": _amount("How fast it trains."),
        "gpuSeconds": _amount("The GPU time that it has used, in seconds of one GPU."),
        "countedAt": _time("Until when that is counted."),
        "iterationsTotal": _amount("How many iterations it needs, as far as can be told."),
        "fraction": Number(
            description="How much of the training is done.", minimum=0, maximum=1, whole=False
        ),
        "etaSeconds": _count("In how many seconds it is expected to be done."),
        "etaLowSeconds": _count("The same if all goes well."),
        "etaHighSeconds": _count("The same if it does not."),
        "metric": _amount("The metric of its target, as it was reported last.", least=-MANY),
        "reached": _count("How often in a row its target was reached."),
    },
)

_QUEUE: Final = Record(
    description="Where it is among the jobs that wait. Written when it changes by a tenth.",
    fields={
        "ahead": _count("How many of the jobs that wait start before it."),
        "expectedStart": _time(
            "When it starts, if running jobs end as predicted and no other job comes."
        ),
        "unknownBecause": Text(
            description="Why that is not known.", max_length=history.LONGEST_MESSAGE
        ),
    },
)

_CONDITIONS: Final = Many(
    description="What is true of the job besides its phase, each with a reason.",
    max_items=MOST_CONDITIONS,
    key="type",
    items=Record(
        description="As any condition of Kubernetes, for kubectl wait --for=condition.",
        fields={
            "type": Text(
                description="What it is about, in CamelCase.",
                required=True,
                max_length=316,
                form=_CONDITION_TYPE,
                is_for_programs=True,
            ),
            "status": Text(
                description="Whether it is so.",
                required=True,
                max_length=8,
                choices=("True", "False", "Unknown"),
            ),
            "observedGeneration": _count("The generation of the spec that it was concluded from."),
            "lastTransitionTime": _time("When its status became what it is.", required=True),
            "reason": Text(
                description="Why, in CamelCase, for programs.",
                required=True,
                max_length=1024,
                form=_REASON,
                is_for_programs=True,
            ),
            "message": Text(
                description="Why, in a sentence, for people.",
                required=True,
                min_length=0,
                max_length=LONGEST_MESSAGE,
            ),
        },
    ),
)

_HISTORY: Final = Many(
    description="The latest decisions about the job and how it ended, oldest first.",
    max_items=history.KEPT,
    items=Record(
        description="What was decided.",
        fields={
            "at": _time("When."),
            "kind": Text(
                description="start, reshape, move, restart, stop, wait, completed or failed.",
                required=True,
                max_length=16,
            ),
            "message": Text(
                description="What and why, in a sentence.", max_length=history.LONGEST_MESSAGE
            ),
            "cause": Text(description="Why, for programs.", max_length=64),
            "generation": _count("Which decision about its GPUs this was."),
            "gpusBefore": Number(description="How many GPUs it had.", minimum=0, maximum=MAX_GPUS),
            "gpus": Number(description="How many it got.", minimum=0, maximum=MAX_GPUS),
            "nodesBefore": _slices("Which it had, unless they were on very many nodes."),
            "nodes": _slices("Which it got, unless they are on very many nodes."),
            "costSeconds": _amount("For how long it did not train because of it."),
        },
    ),
)

_SHOWN: Final = Record(
    description="The same for people: what the columns of kubectl get show.",
    fields={
        name: Text(description=description, max_length=LONGEST_MESSAGE)
        for name, description in (
            ("progress", "How much of the training is done."),
            ("speed", "How fast it trains."),
            ("eta", "In what time it is expected to be done."),
            ("allocation", "Which GPUs of which nodes it has."),
        )
    },
)

_FIELDS: Final[dict[str, Node]] = {
    "epoch": _count("Which leader among the operators wrote this."),
    "revision": _count("Counts the writes of this status."),
    "observedGeneration": _count("The generation of the spec that all of this was concluded from."),
    "phase": Text(
        description="The phase of the job.",
        max_length=16,
        choices=tuple(phase.value for phase in Phase),
    ),
    "message": Text(
        description="What the job does now and why, or how it ended.",
        max_length=LONGEST_MESSAGE,
    ),
    "allocation": _ALLOCATION,
    "progress": _PROGRESS,
    "queue": _QUEUE,
    "shown": _SHOWN,
    "history": _HISTORY,
    "pods": Many(
        description="The pods that were asked for and are not proven to have ended.",
        max_items=MOST_PODS,
        items=Record(
            description="A pod that was asked for.",
            fields={
                "node": _node("The node that it was asked for."),
                "serial": _count("Counts the pods of the job.", required=True),
                "shaped": _count("In which generation its GPUs had been changed last."),
                "used": Flag(
                    description="Whether it was up, so that something may have run in it."
                ),
            },
        ),
    ),
    "podsBooked": _count("How many pods the job ever had."),
    "podsBookedAt": _time("When it was last given pods."),
    "leftover": _slices("GPUs of former decisions that it was not yet seen to have released."),
    "cause": Record(
        description="Why the job has what it has, or why it waits, for programs.",
        fields={
            "code": Text(
                description="What the reason is.",
                required=True,
                max_length=64,
                choices=tuple(code.value for code in CauseCode),
            ),
            "job": Text(description="Whom it is about.", min_length=0, max_length=512),
            "gpus": Number(description="How many GPUs.", minimum=0, maximum=MANY),
        },
    ),
    "submittedAt": _time("When the job was first seen."),
    "startedAt": _time("When GPUs were first decided for it."),
    "finishedAt": _time("When it was completed or failed."),
    "retryAt": _time("Not before then it is started again after a crash."),
    "boundTo": Many(
        description="The nodes that hold its checkpoint, if only they can read it.",
        max_items=MOST_NODES,
        items=_node(),
    ),
    "checkpoint": Record(
        description="Whether its work is saved, and what of it was lost.",
        fields={
            "trust": Text(
                description="Whether its checkpoints can be counted on.",
                max_length=16,
                choices=tuple(trust.value for trust in Trust),
            ),
            "iteration": _count("The iteration that was saved last, as far as is known."),
            "savedAt": _time("When a checkpoint was confirmed last."),
            "judged": _count("The change of its GPUs whose checkpoint was judged last."),
            "trials": _count("How often in a row one was asked for in vain."),
            "tried": _count("The trial of its checkpoint, without a stop, that was judged last."),
            "triable": Flag(description="Whether its checkpoint can be tried while it trains."),
            "ends": Flag(description="Whether it ended or stood still when that was done."),
            "failedAt": _time("When a checkpoint was found last not to work."),
            "heard": _count("The start of its processes whose progress was heard last."),
            "pace": _amount("How fast it trained when that was last known."),
            "lostIterations": _count("How many iterations it did again after its starts."),
            "lostSeconds": _amount("How long these had taken."),
        },
    ),
    "failures": _count("How often its processes failed."),
    "restarts": _count("How often it was started anew for a reason that was not its own."),
    "setbacks": _count("How often in a row it could not be started, for such a reason."),
    "reshapes": _count("How often its GPUs were changed while it trained."),
    "reshapeSeconds": _amount("For how long it did not train because its GPUs were changed."),
    "pausedAt": _time("Since when it does not train because its GPUs are being changed."),
    "exitCode": Number(
        description="How its training ended: with this code, or by a signal if it is above 128.",
        minimum=-255,
        maximum=255,
    ),
    "conditions": _CONDITIONS,
}

STATUS: Final = Record(
    description="How the job is doing. Written by DLJob, and by nobody else.", fields=_FIELDS
)
