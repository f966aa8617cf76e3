"""
Two futures of all jobs of a live system by its own scheduler: as it is, and if one thing were different.

A process of its own, which the live page's server starts for each question (:mod:`dlctl.verbs.server.web_process`):
a question comes from standard input and its answer goes to standard output. It looks at the system as
``dljob simulate --live`` does, changes what the question says in the documents of that one look, and plays both on. The
system itself is only read.
"""

import json
import resource
import sys
import time
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final

from dlcore import policies
from dlcore.documents.jobnames import full_name
from dlcore.documents.jobrules import options_of
from dlcore.problems import WrongDocument
from dlcore.recording.sums import list_spans
from dlctl.backends.backend import BackendError, JobList, Json
from dlctl.backends.local.local_backend import LocalBackend
from dlctl.verbs.studies import foretelling, live
from dllocal.folders import Folders
from dlsim.errors import BadInput
from dlsim.jobs.workloads import Workload
from dlsim.simulating import Contestant, Outcome, simulate

MOST_CPU_S: Final = 60
"""A question that takes longer is given up."""

KEPT: Final = ("types", "mixed", "maxNodes", "ids")
"""Fields of a job's GPUs that stay as they are where other numbers are supposed."""

LARGEST_NUMBER: Final = 10**6


class WrongQuestion(Exception):
    """It cannot be supposed; ``str()`` names the field and the remedy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """The differences that are supposed; empty: none."""

    policy: str = ""
    job: str = ""
    """Of this job the next three."""
    priority: int | None = None
    least: int | None = None
    most: int | None = None
    another: str = ""
    """One more job like this one is submitted now."""
    cordon: str = ""
    """The GPUs of this node are given to no job any more."""


FIELDS: Final = frozenset(field.name for field in fields(Question))


def read_question(document: Any) -> Question:
    """Read a question; raises :class:`WrongQuestion`."""
    if not isinstance(document, dict):
        raise WrongQuestion('the question is no JSON object; write such as {"policy": "fifo"}')
    unknown = sorted(set(document) - FIELDS)
    if unknown:
        raise WrongQuestion(
            f"{unknown[0]}: there is no such field; there are {', '.join(sorted(FIELDS))}"
        )
    for name, value in document.items():
        is_number = name in ("priority", "least", "most")
        if is_number and (type(value) is not int or abs(value) > LARGEST_NUMBER):
            raise WrongQuestion(f"{name}: is no whole number of at most {LARGEST_NUMBER:,}")
        if not is_number and not isinstance(value, str):
            raise WrongQuestion(f"{name}: is no text")
    question = Question(**document)
    if question.job == "" and any(
        document.get(each) is not None for each in ("priority", "least", "most")
    ):
        raise WrongQuestion("job: is missing; name the job whose priority or GPUs are to be others")
    return question


class Supposed(LocalBackend):
    """A live system as it was at one look, and as it is supposed to be."""

    def __init__(self, socket: Path, before: LocalBackend) -> None:
        super().__init__(socket)
        self.jobs = before.list_jobs()
        self.nodes = before.list_nodes()
        self.settings = before.list_settings()

    def list_jobs(self, selector: str = "") -> JobList:  # noqa: ARG002 - all are played
        return self.jobs

    def list_nodes(self) -> list[Json]:
        return self.nodes

    def list_settings(self) -> list[Json]:
        return self.settings

    def apply(self, question: Question) -> None:
        """Change what the question says; raises :class:`WrongQuestion`."""
        items = deepcopy(self.jobs.items)
        if question.job:
            _change(_find(items, question.job, "job"), question)
        if question.another:
            items.append(_copy(_find(items, question.another, "another"), items))
        self.jobs = self.jobs._replace(items=items)
        if question.cordon:
            self.nodes = _cordon(self.nodes, question.cordon)


def _find(items: Sequence[Json], name: str, field: str) -> Json:
    for item in items:
        if full_name(item) == name:
            return item
    raise WrongQuestion(f"{field}: there is no job {name}; dljob get lists those that are")


def _change(document: Json, question: Question) -> None:
    spec = document["spec"]
    if question.priority is not None:
        spec["priority"] = question.priority
    if question.least is None and question.most is None:
        return
    options = options_of(spec["gpus"])
    least = options[0] if question.least is None else question.least
    most = options[-1] if question.most is None else question.most
    if not 1 <= least <= most:
        raise WrongQuestion(
            f"least: {least} GPUs at least and {most} at most is no range; give 1 or more, and no more than most"
        )
    kept = {name: value for name, value in spec["gpus"].items() if name in KEPT}
    within = {each for each in options if least <= each <= most}
    spec["gpus"] = {**kept, "options": sorted(within | {least, most})}


def _copy(document: Json, items: Sequence[Json]) -> Json:
    """Make a new job of the same kind and length, which has not started."""
    names = {item["metadata"]["name"] for item in items}
    number = next(
        each
        for each in range(2, len(names) + 3)
        if f"{document['metadata']['name']}-{each}" not in names
    )
    metadata = {
        name: value
        for name, value in document["metadata"].items()
        if name in ("namespace", "labels")
    }
    spec = {**document["spec"], "suspend": False}
    return {
        **{name: document[name] for name in ("apiVersion", "kind")},
        "metadata": {**metadata, "name": f"{document['metadata']['name']}-{number}"},
        "spec": spec,
    }


def _cordon(nodes: Sequence[Json], name: str) -> list[Json]:
    if name not in [node["name"] for node in nodes]:
        known = ", ".join(node["name"] for node in nodes)
        raise WrongQuestion(f"cordon: there is no node {name}; there are {known}")
    return [
        {**node, "gpus": [{**gpu, "reason": "cordoned"} for gpu in node["gpus"]]}
        if node["name"] == name
        else node
        for node in nodes
    ]


def suppose(root: Path, question: Question) -> Json:
    """Answer a question about the ``dljob up`` of a state folder."""
    socket = Folders(root).socket
    supposed = Supposed(socket, LocalBackend(socket))
    at = time.time()
    now = live.look(supposed, state=root, profiles=None, seed=0, now=at)
    supposed.apply(question)
    then = live.look(supposed, state=root, profiles=None, seed=0, now=at)
    futures = [_play(now, now.policy), _play(then, question.policy or now.policy)]
    return {"notes": list(then.workload.notes), "futures": futures}


def _play(present: live.Present, policy: str) -> Json:
    try:
        contestant = Contestant(policy, policies.read(policy))
    except ValueError as error:
        raise WrongQuestion(f"policy: {error}") from error
    if not present.workload.jobs:
        return {"policy": policy, "jobs": []}
    [outcome] = simulate(present.workload, present.setting, [contestant], records=True)
    return {"policy": policy, "jobs": _list_jobs(present.workload, outcome)}


def _list_jobs(workload: Workload, outcome: Outcome) -> list[Json]:
    futures = foretelling.foretell(workload, outcome.record)
    assert outcome.happenings is not None
    spans: dict[str, list[float]] = {}
    for span in list_spans(outcome.happenings):
        found = (round(span.begin, 1), round(span.end, 1), span.placement.gpus)
        spans.setdefault(span.job, []).extend(found)
    return [
        {
            "job": job,
            "gpus": future.gpus,
            "endsInSeconds": _rounded(future.ends_in_s),
            "spans": spans.get(job, []),
        }
        for job, future in futures.items()
    ]


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 1)


def answer(root: Path, document: Any) -> Mapping[str, Any]:
    """Answer a question, or say what is wrong with it."""
    try:
        return suppose(root, read_question(document))
    except WrongQuestion as error:
        return {"error": str(error), "status": 400}
    except WrongDocument as error:
        return {"error": error.lines()[0], "status": 400}
    except (BackendError, BadInput) as error:
        return {"error": str(error), "status": 503}


def main(root: str) -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (MOST_CPU_S, MOST_CPU_S))
    json.dump(answer(Path(root), json.load(sys.stdin)), sys.stdout)


if __name__ == "__main__":
    main(*sys.argv[1:])
