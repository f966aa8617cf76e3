"""
A question about futures, or a plan, as a game: its process gets all documents with the question, and neither rights nor credentials.

A user who sees a part of the cluster gets neither: the ends of hidden jobs decide when visible ones start, and by asking again and
again their number and their lengths could be found out.
"""

import json
import os
import time
from collections.abc import Sequence
from typing import Final, NamedTuple

from dljob.cli.verbs.studies.supposing import HERE
from dljob.client.backend import Created
from dljob.core.documents.profilefile import render_all
from dljob.core.profiles import Profile
from dljob.kube.documents import JsonObject
from dljob_web.games import Game
from dljob_web.portal.rights import Rights

LONGEST_S: Final = 60.0
"""After this time a question is given up, where the command line names no other."""

MOST_GAMES: Final = 2
"""The number of questions that are answered at the same time, for all users."""

MOST_BYTES: Final = 512 << 20
"""The memory of a game. The limit of the pod in the chart has room for ``MOST_GAMES`` of them."""

KEPT: Final = ("HOME", "LANG", "PATH", "PYTHONDONTWRITEBYTECODE", "PYTHONPATH")
"""Variables that a game gets. Others have the credentials of the store."""

REMEDY: Final = "ask with kubectl dljob simulate --live"
PLAN_REMEDY: Final = "ask with kubectl dljob submit --dry-run"

SHIPPED: Final = (
    "the operator's profiles cannot be read: speeds are the shipped ones and those of now"
)


class Known(NamedTuple):
    """The knowledge that a game needs in addition to jobs and nodes."""

    settings: Sequence[JsonObject]
    profiles: Sequence[Profile]
    notes: Sequence[str]


def explain_withheld(rights: Rights) -> str:
    """Return why a user with these rights gets no futures and plans, with the remedy; empty: the user gets them."""
    if rights.has_all:
        return ""
    # The right to list jobs comes first, because most users lack it.
    missing, role = ("nodes", "dljob-gpus-view")
    if rights.namespaces is not None:
        missing, role = ("DLJobs in all namespaces", "view")
    return (
        "futures and plans are made with all jobs and all GPUs, and would reveal some that you may not see, because you may"
        f" not list {missing}; an administrator grants it by a ClusterRoleBinding to the ClusterRole"
        f" {role}"
    )


def pose_game(
    question: object, *, jobs: Sequence[JsonObject], nodes: Sequence[JsonObject], known: Known
) -> Game:
    """Prepare the process that answers a question."""
    told = {
        "question": question,
        "home": "",
        "at": time.time(),
        "jobs": jobs,
        "nodes": nodes,
        "settings": known.settings,
        "profiles": render_all(known.profiles),
        "notes": known.notes,
    }
    return _make_game(("dljob.cli.verbs.studies.supposing", HERE), told, remedy=REMEDY)


def pose_plan(created: Created, *, jobs: Sequence[JsonObject], premises: JsonObject) -> Game:
    """Prepare the process that plans for accepted jobs."""
    told = {
        "created": created.items,
        "notices": created.notices,
        "at": time.time(),
        "jobs": jobs,
        **premises,
    }
    return _make_game(("dljob_web.portal.planning",), told, remedy=PLAN_REMEDY)


def _make_game(words: Sequence[str], told: JsonObject, *, remedy: str) -> Game:
    # Else the threads of a library for matrices take the memory that a game may have.
    environment = {"OPENBLAS_NUM_THREADS": "1"}
    environment |= {name: os.environ[name] for name in KEPT if name in os.environ}
    question = json.dumps(told).encode()
    return Game((*words, str(MOST_BYTES)), question, remedy=remedy, environment=environment)
