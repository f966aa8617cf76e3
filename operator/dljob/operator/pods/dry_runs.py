"""
Dry runs: whether Kubernetes would accept the pods of a job, asked when the job is submitted.

The custom resource defines only those parts of a pod template that rules need, so a dry run of creating a pod checks
the rest. A job is not scheduled before the answer. If its pods would be refused, the job is set aside with the
message of the API server, and the dry run is repeated from time to time, because the reason may be a quota or a
missing class. A template may hold anything; an error from reading it must not end the dry runs of other jobs.

Jobs that differ only by their names, such as those of a sweep, share one dry run.
"""

import asyncio
import hashlib
import json
import logging
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from dljob.control.situation.status import Booking
from dljob.core.documents import jobfile
from dljob.core.model import Job, NodeName
from dljob.core.placement.amounts import NoAmount
from dljob.kube.client import ApiServer, Conflict, Rejected, Unreachable
from dljob.kube.documents import Json
from dljob.kube.names import Name
from dljob.kube.resources import PODS
from dljob.operator.jobs.entries import Specs, is_over
from dljob.operator.nodes.requests import Asks, read_asks
from dljob.operator.pods.remedies import RefusalKind, find_remedy
from dljob.operator.podspecs import building
from dljob.operator.podspecs.podsettings import PodSettings
from dljob_wire.problems import WrongDocument

log = logging.getLogger(__name__)


AT_ONCE = 8
FRESH_S = 60.0
"""The time for which an accepted pod counts for equal jobs."""
REFUSED_S = 1.0
"""The time for which a refusal counts for equal jobs; short, because the reason may vanish."""
MOST_ALIKE = 1000
NOWHERE = NodeName("dry-run")
AGAIN_S = (REFUSED_S, 5.0, 15.0, 60.0)
SERVER_ERROR = 500
LONGEST = 800
SUBJECT = re.compile(r'^(?:pods|Pod) "[^"]*" is (?:forbidden|invalid): ')
"""The beginning of a refusal, with the name of the job whose dry run was shared."""


@dataclass(slots=True)
class _Trial:
    of: tuple[str, int]
    verdict: str | None = None
    asks: Asks | None = None
    task: asyncio.Task[None] | None = None


class _Alike(NamedTuple):
    """Jobs that are alike have pods that differ only by the name of the job."""

    namespace: str
    spec: bytes

    @classmethod
    def of(cls, document: Json) -> "_Alike":
        spec = json.dumps(document["spec"], sort_keys=True)
        return cls(Name.of(document).namespace, hashlib.sha256(spec.encode()).digest())


class _Answer(NamedTuple):
    verdict: str | None
    """The reason why the pod would be refused; empty if it would not; None without an answer."""
    until: float
    """The time until which the answer counts for equal jobs."""
    asks: Asks | None = None
    """The requests of the pod as the API server would create it."""
    excuses_pods: bool = False
    """True if the refusal says nothing against a job that has pods: a quota that these pods fill, or a field that
    Kubernetes dropped when they were made."""


class _Questions:
    """Requests for dry runs: one for all jobs that are alike, and a few at a time."""

    def __init__(self, api: ApiServer) -> None:
        self._api = api
        self._known: dict[_Alike, asyncio.Task[_Answer]] = {}
        """In the order of their requests."""
        self._turns = asyncio.Semaphore(AT_ONCE)

    def cancel(self) -> None:
        for question in self._known.values():
            question.cancel()

    def answer(self, alike: _Alike, name: Name, *, pod: Json) -> asyncio.Task[_Answer]:
        """Return the answer for jobs that are alike, and request it if there is none."""
        loop = asyncio.get_running_loop()
        known = self._known
        question = known.get(alike)
        if question is not None and _counts(question, loop.time()):
            return question
        known.pop(alike, None)
        self.drop_stale()
        known[alike] = loop.create_task(self._ask(name, pod))
        return known[alike]

    def drop_stale(self) -> None:
        now, known = asyncio.get_running_loop().time(), self._known
        while known and not _counts((oldest := next(iter(known.items())))[1], now):
            del known[oldest[0]]

    async def _ask(self, name: Name, pod: Json) -> _Answer:
        asks, excuses_pods = None, False
        try:
            async with self._turns:
                taken = await self._api.create(PODS, pod, name.namespace, dry_run=True, strict=True)
            verdict, asks = "", _read(name, taken)
        except Conflict:
            verdict = ""  # A pod of this name was accepted before.
        except Unreachable as error:
            log.warning(
                "cannot check whether Kubernetes accepts the pods of job %s: %s", name, error
            )
            verdict = None
        except Rejected as error:
            refusal = find_remedy(error)
            why = f"Kubernetes would refuse its pods: {SUBJECT.sub('', str(error))}"
            is_answer = error.status < SERVER_ERROR
            verdict = f"{why[:LONGEST]}; {refusal.remedy}" if is_answer else None
            excuses_pods = refusal.kind in (RefusalKind.QUOTA, RefusalKind.UNKNOWN_FIELD)
        except Exception:
            # Other jobs may wait for this answer.
            log.exception("cannot check whether Kubernetes accepts the pods of job %s", name)
            verdict = None
        counts_for = FRESH_S if verdict == "" else REFUSED_S
        until = asyncio.get_running_loop().time() + counts_for
        return _Answer(verdict, until, asks, excuses_pods)


class DryRuns:
    """The dry runs of all jobs, for the life of a leader."""

    def __init__(
        self, api: ApiServer, specs: Specs, *, settings: PodSettings, wake: Callable[[], None]
    ) -> None:
        self._questions = _Questions(api)
        self.specs = specs
        self._settings = settings
        self._wake = wake
        self._trials: dict[Name, _Trial] = {}
        self._alike: dict[Asks, Asks] = {}
        """Equal requests are one object."""
        self._news: set[Name] = set()

    def begin(self, document: Json) -> None:
        """Begin the dry run of a job's present spec, unless that was begun before."""
        name, metadata = Name.of(document), document["metadata"]
        trial = self._trials.get(name)
        if is_over(document):
            if trial is not None and trial.task is not None:
                trial.task.cancel()
            return
        of = (metadata["uid"], metadata["generation"])
        if trial is None or trial.of != of:
            # The result for the former spec counts until there is a new one.
            known = self.result(document)
            self.forget(name)
            trial = self._trials[name] = _Trial(of, known)
            trial.task = asyncio.get_running_loop().create_task(
                self._try(name, trial, document=document)
            )

    def result(self, document: Json) -> str | None:
        """Return why Kubernetes would refuse the pods of a job; empty if it would not, ``None`` while unknown."""
        if is_over(document):
            return ""
        trial = self._trials.get(Name.of(document))
        is_of_job = trial is not None and trial.of[0] == document["metadata"]["uid"]
        return trial.verdict if trial is not None and is_of_job else None

    def asks(self, name: Name) -> Asks | None:
        """Return the requests of a job's pods as Kubernetes would accept them."""
        trial = self._trials.get(name)
        return trial.asks if trial is not None else None

    def news(self) -> set[Name]:
        """Return the jobs with new results since the last call."""
        self._questions.drop_stale()
        news, self._news = self._news, set()
        return news

    def forget(self, name: Name) -> None:
        """Forget a job that is gone."""
        trial = self._trials.pop(name, None)
        if trial is not None and trial.task is not None:
            trial.task.cancel()

    async def close(self) -> None:
        for name in list(self._trials):
            self.forget(name)
        self._questions.cancel()

    async def _try(self, name: Name, trial: _Trial, *, document: Json) -> None:
        try:
            job = self.specs.parse(document)
        except jobfile.JobFileError:
            # JobReader reports that itself.
            self._find(name, trial, verdict="")
            return
        attempt = 0
        while not await self._is_taken(name, trial, document=document, job=job):
            await asyncio.sleep(AGAIN_S[min(attempt, len(AGAIN_S) - 1)])
            attempt += 1

    async def _is_taken(self, name: Name, trial: _Trial, *, document: Json, job: Job) -> bool:
        """Make one dry run; thousands of refused jobs keep no draft until the next one."""
        pod, flaw = _draft(name, document, job=job, settings=self._settings)
        if trial.asks is None:
            self._learn(name, trial, asks=_read(name, pod))
        question = self._questions.answer(_Alike.of(document), name, pod=pod)
        # One job that no longer waits must not cancel the answer for others.
        answer = await asyncio.shield(question)
        # With additions of the cluster, such as default requests and the overhead of the runtime.
        self._learn(name, trial, asks=answer.asks)
        has_pods = bool((document.get("status") or {}).get("pods"))
        is_taken = answer.verdict == "" or (answer.excuses_pods and has_pods)
        if is_taken or answer.verdict is not None:
            self._find(name, trial, verdict=flaw if is_taken else answer.verdict or "")
        return is_taken

    def _learn(self, name: Name, trial: _Trial, *, asks: Asks | None) -> None:
        if asks is None or asks == trial.asks:
            return
        if len(self._alike) > MOST_ALIKE:
            self._alike.clear()
        trial.asks = self._alike.setdefault(asks, asks)
        self._news.add(name)
        # Jobs without a verdict are not scheduled yet.
        if trial.verdict is not None:
            self._wake()

    def _find(self, name: Name, trial: _Trial, *, verdict: str) -> None:
        if verdict != trial.verdict:
            trial.verdict = verdict
            self._news.add(name)
            self._wake()


def _draft(name: Name, document: Json, *, job: Job, settings: PodSettings) -> tuple[Json, str]:
    """Return the pod of a job; if it is the bare template, without a SideCar, also the reason."""
    try:
        booking = Booking(NOWHERE, 0)
        pod = building.make_trainer(dict(document), job, booking=booking, settings=settings)
        return pod, ""
    except WrongDocument as error:
        # The API server's message is better; our own is reported only if the API server accepts the pod.
        flaw = "; ".join(error.lines())[:LONGEST]
    except Exception as error:
        log.info("no pod can be built from the template of job %s", name, exc_info=True)
        flaw = f"spec.template cannot be read as a pod: {error}"[:LONGEST] + "; correct it"
    return building.make_bare(dict(document), job), flaw


def _counts(question: asyncio.Task[_Answer], now: float) -> bool:
    return not question.done() or now < question.result().until


def _read(name: Name, pod: Json) -> Asks | None:
    """Read the requests of a pod; None if they cannot be read, which the API server reports."""
    try:
        asks = read_asks(pod, NOWHERE)
        hash(asks)  # An unhashable value would fail later, in a cache.
    except NoAmount:
        return None
    except Exception:
        log.info("the resources of the pods of job %s cannot be read", name, exc_info=True)
        return None
    return asks
