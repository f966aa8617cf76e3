"""
The queue as the page and its API show it: jobs that wait, in the order of their turns.

All of it follows from DLJob documents as ``dljob get -o json`` prints them.

Pure.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from dljob.core.documents.jobnames import full_name
from dljob.core.model import Phase

Json = dict[str, Any]

UNKNOWN_TURN: Final[Mapping[str, Any]] = {
    "unknownBecause": "its turn is not written yet; those of the first jobs in a long queue come first"
}


OF_ANOTHER: Final[Mapping[str, Any]] = {
    "unknownBecause": "only the owner of the job and root see its turn"
}
"""The turn of a job on a server of several users, of which this user sees the name, the owner and the GPUs alone."""


def make_queue(jobs: Sequence[Json]) -> list[Json]:
    """List the jobs that wait for GPUs in the order of their turns."""
    givers = _list_givers(jobs)
    # Jobs of the same turn are in the order of their submission.
    waiting = sorted(filter(_waits, jobs), key=_turn)
    return [_item(job, givers.get(full_name(job), [])) for job in waiting]


def _waits(job: Json) -> bool:
    """Return whether a job waits: of a long queue, the operator has written the turns of the first jobs alone."""
    status = job.get("status", {})
    return "queue" in status or status.get("phase") == Phase.QUEUED


def _turn(job: Json) -> tuple[float, int]:
    """Order jobs by their turns; those whose turn is not known come last, by their priority."""
    ahead = job["status"].get("queue", UNKNOWN_TURN).get("ahead", math.inf)
    return ahead, -job.get("spec", {}).get("priority", 0)


def _item(job: Json, givers: Iterable[str]) -> Json:
    status = job["status"]
    return {
        "job": full_name(job),
        "priority": job.get("spec", {}).get("priority", 0),
        "submittedAt": job["metadata"].get("creationTimestamp"),
        "message": status.get("message", ""),
        **status.get("queue", OF_ANOTHER if "owner" in status else UNKNOWN_TURN),
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
