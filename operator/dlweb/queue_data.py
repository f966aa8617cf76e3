"""
The queue as the page shows it and its API tells it: jobs that wait, in the order of their turns.

All of it follows from DLJob documents as ``dljob get -o json`` prints them.

Pure.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from dlcore.documents.jobnames import full_name

Json = dict[str, Any]


def make_queue(jobs: Sequence[Json]) -> list[Json]:
    """List the jobs that wait for GPUs: those whose turn comes first are first."""
    givers = _list_givers(jobs)
    waiting = [job for job in jobs if "queue" in job.get("status", {})]
    # Those of one turn are in the order of their submission.
    waiting.sort(key=lambda job: job["status"]["queue"]["ahead"])
    return [_item(job, givers.get(full_name(job), [])) for job in waiting]


def _item(job: Json, givers: Iterable[str]) -> Json:
    status = job["status"]
    return {
        "job": full_name(job),
        "priority": job.get("spec", {}).get("priority", 0),
        "submittedAt": job["metadata"].get("creationTimestamp"),
        "message": status.get("message", ""),
        **status["queue"],
        "makesRoom": list(givers),
    }


def _list_givers(jobs: Iterable[Json]) -> dict[str, list[str]]:
    """List, by the job that needs GPUs, the jobs that give GPUs up for it."""
    givers: dict[str, list[str]] = {}
    for job in jobs:
        taker = job.get("status", {}).get("cause", {}).get("job")
        if taker and job["status"].get("phase") == "Adjusting":
            givers.setdefault(taker, []).append(full_name(job))
    return givers
