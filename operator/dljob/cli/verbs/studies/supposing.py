"""
Two futures of all jobs of a live system under its own scheduler: as the system is, and with one difference.

The page's server starts this process for each question (:mod:`dljob_web.games`), which comes on standard input; the answer
goes to standard output. On one machine the process reads the system as ``dljob simulate --live`` does. On a cluster the
server sends the documents with the question, so that the process needs no rights. The process changes the documents as
the question asks, and plays both futures. The system itself is only read.
"""

import json
import os
import resource
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, fields, replace
from itertools import count
from pathlib import Path
from typing import Any, Final

from dljob.cli.output.streams import harmless_document
from dljob.cli.verbs.studies import foretelling, live
from dljob.client.backend import BackendError, JobList, Json
from dljob.client.local.local_backend import LocalBackend
from dljob.core import policies
from dljob.core.documents import profilefile
from dljob.core.documents.jobnames import full_name
from dljob.core.documents.rules.jobrules import options_of
from dljob.core.recording.sums import list_spans
from dljob.local.folders import Folders
from dljob.sim.errors import BadInput
from dljob.sim.jobs.workloads import Workload
from dljob.sim.simulating import Contestant, Outcome, simulate
from dljob_wire.problems import WrongDocument

HERE: Final = "-"
"""Named instead of a state folder where the documents come with the question."""

NICE: Final = 5
"""On a cluster, viewers of the page come before questions."""

KEPT: Final = ("types", "mixed", "maxNodes", "ids")
"""Fields of a job's GPUs that stay when a question changes their number."""

LARGEST_NUMBER: Final = 10**6


class WrongQuestion(Exception):
    """A question that cannot be answered; ``str()`` names the field and the remedy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """The differences from the system as it is; empty: none."""

    policy: str = ""
    job: str = ""
    """The job to which the next three fields belong."""
    priority: int | None = None
    least: int | None = None
    most: int | None = None
    another: str = ""
    """A copy of this job is submitted now."""
    cordon: str = ""
    """No job gets GPUs of this node any more."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Supposed:
    """The answers of a live system at one moment, as they are or with the differences of a question."""

    jobs: list[Json]
    nodes: list[Json]
    settings: list[Json]
    home: str = ""

    @classmethod
    def ask(cls, living: live.Living) -> "Supposed":
        return cls(
            jobs=living.list_jobs().items,
            nodes=living.list_nodes(),
            settings=living.list_settings(),
            home=living.home,
        )

    def list_jobs(self) -> JobList:
        return JobList(self.jobs)

    def list_nodes(self) -> list[Json]:
        return self.nodes

    def list_settings(self) -> list[Json]:
        return self.settings

    def change(self, question: Question) -> "Supposed":
        """Return the answers with the differences of a question; raises :class:`WrongQuestion`."""
        jobs, nodes = deepcopy(self.jobs), self.nodes
        if question.job:
            _change(self._find(jobs, question.job, field="job"), question)
        if question.another:
            jobs.append(_copy(self._find(jobs, question.another, field="another"), jobs))
        if question.cordon:
            nodes = _cordon(nodes, question.cordon)
        return replace(self, jobs=jobs, nodes=nodes)

    def _find(self, items: Sequence[Json], name: str, *, field: str) -> Json:
        for item in items:
            if name in (full_name(item), full_name(item, self.home)):
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
    """Make a new job of the same type and length, which has not started."""
    metadata = {
        name: value
        for name, value in document["metadata"].items()
        if name in ("namespace", "labels")
    }
    # A job in another namespace may have the same name.
    taken = {full_name(item) for item in items}
    numbered = ({**metadata, "name": f"{document['metadata']['name']}-{each}"} for each in count(2))
    named = next(each for each in numbered if full_name({"metadata": each}) not in taken)
    spec = {**document["spec"], "suspend": False}
    return {
        **{name: document[name] for name in ("apiVersion", "kind")},
        "metadata": named,
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
    backend = LocalBackend(Folders(root).socket)
    supposed = Supposed.ask(backend)
    known = live.read_known(backend, state=root, profiles=None)
    return _compare(supposed, known, question=question, at=time.time())


def suppose_here(sent: Json) -> Json:
    """Answer a question about a cluster from the documents that the page's server has read."""
    question = read_question(sent["question"])
    given = {name: sent[name] for name in ("jobs", "nodes", "settings", "home")}
    supposed = Supposed(**given)
    profiles = {profile.type: profile for profile in profilefile.parse_all(sent["profiles"])}
    known = live.Known(profiles, tuple(sent["notes"]))
    return _compare(supposed, known, question=question, at=sent["at"])


def _compare(supposed: Supposed, known: live.Known, *, question: Question, at: float) -> Json:
    # The same seed and the same instant, so that the futures differ by the question alone.
    now = live.read(supposed, known, seed=0, now=at)
    then = live.read(supposed.change(question), known, seed=0, now=at)
    futures = [_play(now, now.policy), _play(then, question.policy or now.policy)]
    return {"notes": list(then.workload.notes), "futures": futures}


def _play(present: live.Present, policy: str) -> Json:
    try:
        contestant = Contestant(policy, policies.read(policy))
    except ValueError as error:
        raise WrongQuestion(f"policy: {error}") from error
    if not present.workload.jobs:
        return {"policy": policy, "jobs": []}
    [outcome] = simulate(present.workload, present.setting, contestants=[contestant], records=True)
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
    """Answer a question about a ``dljob up``, or return what is wrong with the question."""
    return _answer_or_refuse(lambda: suppose(root, read_question(document)))


def _answer_or_refuse(act: Callable[[], Json]) -> Mapping[str, Any]:
    try:
        found = act()
    except WrongQuestion as error:
        found = {"error": str(error), "status": 400}
    except WrongDocument as error:
        found = {"error": error.lines()[0], "status": 400}
    except (BackendError, BadInput) as error:
        found = {"error": str(error), "status": 503}
    except MemoryError:
        problem = "the answer takes too much memory here; ask with dljob simulate --live"
        found = {"error": problem, "status": 504}
    # Errors repeat names and policies of the question.
    checked: Json = harmless_document(found)
    return checked


def answer_here(act: Callable[[Json], Json], most_bytes: str) -> None:
    """Answer the question on standard input within a limit of memory; the server limits the time."""
    # Not before the imports, which are small.
    resource.setrlimit(resource.RLIMIT_AS, (int(most_bytes), int(most_bytes)))
    os.nice(NICE)
    json.dump(_answer_or_refuse(lambda: act(json.load(sys.stdin))), sys.stdout)


def main(root: str, most_bytes: str = "") -> None:
    if root == HERE:
        answer_here(suppose_here, most_bytes)
    else:
        json.dump(answer(Path(root), json.load(sys.stdin)), sys.stdout)


if __name__ == "__main__":
    main(*sys.argv[1:])
