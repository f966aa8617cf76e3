"""The tools of ``dljob mcp`` that change jobs, which are offered only where the user has allowed changes."""

from typing import Final

from dljob.client.backend import Json
from dljob.client.changing import cancel_job, change_job, suspend_job
from dljob.client.demands import Demand, read_counts
from dljob.core.documents.jobnames import full_name
from dljob_mcp.tools import DOCUMENT, JOB, Asked, Tool, text, whole


def _submit_job(asked: Asked) -> Json:
    created = asked.backend.create_jobs([asked.given["document"]])
    names = [full_name(each, asked.backend.home) for each in created.items]
    return {"submitted": names, "notices": created.notices}


def _set_job(asked: Asked) -> Json:
    demand = Demand(read_counts(asked.given["gpus"])) if "gpus" in asked.given else Demand()

    def alter(document: Json) -> Json:
        spec = dict(document["spec"])
        if demand.is_given:
            spec["gpus"] = demand.changed(spec["gpus"])
        if "priority" in asked.given:
            spec["priority"] = asked.given["priority"]
        return document if spec == document["spec"] else {**document, "spec": spec}

    return {
        "job": asked.given["job"],
        "changed": change_job(asked.backend, asked.given["job"], alter=alter).is_change,
    }


def _suspend_job(asked: Asked) -> Json:
    change = suspend_job(asked.backend, asked.given["job"], suspended=True)
    return {"job": asked.given["job"], "changed": change.is_change}


def _resume_job(asked: Asked) -> Json:
    change = suspend_job(asked.backend, asked.given["job"], suspended=False)
    return {"job": asked.given["job"], "changed": change.is_change}


def _cancel_job(asked: Asked) -> Json:
    return {"job": asked.given["job"], "done": cancel_job(asked.backend, asked.given["job"])}


CHANGING: Final = (
    Tool(
        name="submit_job",
        does="Submit a job. Its command runs with the rights of the user.",
        ask=_submit_job,
        arguments={"document": DOCUMENT},
        required=("document",),
        changes=True,
        # A command can do anything.
        destroys=True,
        repeats=False,
    ),
    Tool(
        name="set_job",
        does="Change on how many GPUs a job may run, or its priority.",
        ask=_set_job,
        arguments={
            "job": JOB,
            "gpus": text("4, or 1,2,4 for one of these, or 1-4."),
            "priority": whole("A higher one goes first.", least=-1_000_000, most=1_000_000),
        },
        required=("job",),
        changes=True,
        destroys=True,
    ),
    Tool(
        name="suspend_job",
        does="Take all GPUs from a job, which waits until it is resumed. It saves itself if it can; a job without"
        " checkpoints begins again.",
        ask=_suspend_job,
        arguments={"job": JOB},
        required=("job",),
        changes=True,
        destroys=True,
    ),
    Tool(
        name="resume_job",
        does="Put a suspended job into the queue again.",
        ask=_resume_job,
        arguments={"job": JOB},
        required=("job",),
        changes=True,
    ),
    Tool(
        name="cancel_job",
        does="End a job without saving it, and forget it, its logs and, on one machine, its checkpoints.",
        ask=_cancel_job,
        arguments={"job": JOB},
        required=("job",),
        changes=True,
        destroys=True,
    ),
)
