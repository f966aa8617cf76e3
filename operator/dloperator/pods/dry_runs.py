"""
Whether Kubernetes would take the pods of a job, asked when the job is submitted.

Of a pod template only what rules need is typed in the custom resource, so whether the rest is a pod is
found out by a dry run of making one. Until that is answered the job is not looked at; a job whose pods
would be refused is set aside with the words of the API server, and tried again from time to time, because
the reason may be a quota or a missing class, which an administrator can add. So the template of a job that
comes here may hold anything; no error from reading it may end the dry runs of other jobs.

Of many jobs that differ by nothing but their names, as a sweep makes them, one is tried for all.
"""

import asyncio
import hashlib
import json
import logging
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from dlcontrol.situation.status import Booking
from dlcore.documents import jobfile
from dlcore.model import Job, NodeName
from dlcore.placement.amounts import NoAmount
from dlcore.problems import WrongDocument
from dlkube.client import (
    ApiServer,
    Conflict,
    Rejected,
    Unreachable,
)
from dlkube.documents import Json
from dlkube.names import Name
from dlkube.resources import PODS
from dloperator.jobs.entries import Specs, is_over
from dloperator.nodes.requests import Asks, read_asks
from dloperator.pods.remedies import RefusalKind, find_remedy
from dloperator.podspecs import building
from dloperator.podspecs.podsettings import PodSettings

log = logging.getLogger(__name__)


AT_ONCE = 8
FRESH_S = 60.0
"""The time for which an accepted pod counts for others that are alike."""
REFUSED_S = 1.0
"""The time for which a refusal counts for them; it is short, because the reason may vanish at any moment."""
MOST_ALIKE = 1000
NOWHERE = NodeName("dry-run")
AGAIN_S = (REFUSED_S, 5.0, 15.0, 60.0)
SERVER_ERROR = 500
LONGEST = 800
SUBJECT = re.compile(r'^(?:pods|Pod) "[^"]*" is (?:forbidden|invalid): ')
"""How a refusal begins. The name in it is that of the one job which was tried for all that are alike."""


@dataclass(slots=True)
class _Trial:
    of: tuple[str, int]
    verdict: str | None = None
    asks: Asks | None = None
    task: asyncio.Task[None] | None = None


class _Alike(NamedTuple):
    """Of jobs with the same of these, the pods differ by nothing but the name of the job."""

    namespace: str
    spec: bytes

    @classmethod
    def of(cls, document: Json) -> "_Alike":
        spec = json.dumps(document["spec"], sort_keys=True)
        return cls(Name.of(document).namespace, hashlib.sha256(spec.encode()).digest())


class _Answer(NamedTuple):
    verdict: str | None
    """Why the pod would be refused; empty if it would not; none if that was not answered."""
    until: float
    """When the answer stops counting for others that are alike."""
    asks: Asks | None = None
    """The requests of the pod as the API server would create it."""
    is_crowded: bool = False
    """Whether nothing but a quota is in its way."""


class _Draft(NamedTuple):
    pod: Json
    flaw: str = ""
    """Why it is the bare template, which cannot be supervised."""


class _Questions:
    """Dry runs at the API server: one for all jobs that are alike, and few at a time."""

    def __init__(self, api: ApiServer) -> None:
        self._api = api
        self._known: dict[_Alike, asyncio.Task[_Answer]] = {}
        """In the order in which they were asked."""
        self._turns = asyncio.Semaphore(AT_ONCE)

    def cancel(self) -> None:
        for question in self._known.values():
            question.cancel()

    def answer(self, alike: _Alike, name: Name, pod: Json) -> asyncio.Task[_Answer]:
        """Ask for this job, unless it was just asked for one that is alike."""
        loop = asyncio.get_running_loop()
        known = self._known
        question = known.get(alike)
        if question is not None and _counts(question, loop.time()):
            # It may not be answered yet; then all that are alike wait for the same answer.
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
        """Ask once."""
        asks, is_crowded = None, False
        try:
            async with self._turns:
                taken = await self._api.create(PODS, pod, name.namespace, dry_run=True)
            verdict, asks = "", _read(name, taken)
        except Conflict:
            verdict = ""  # There is one of that name, which was taken.
        except Unreachable as error:
            log.warning(
                "cannot check whether Kubernetes accepts the pods of job %s: %s", name, error
            )
            verdict = None
        except Rejected as error:
            refusal = find_remedy(error)
            verdict = _verdict(error, refusal.remedy)
            is_crowded = refusal.kind is RefusalKind.QUOTA
        except Exception:
            # Many wait for the answer, and would else never hear one.
            log.exception("cannot check whether Kubernetes accepts the pods of job %s", name)
            verdict = None
        counts_for = FRESH_S if verdict == "" else REFUSED_S
        until = asyncio.get_running_loop().time() + counts_for
        return _Answer(verdict, until, asks, is_crowded)


class DryRuns:
    """Remembers what was found out; one for the life of an operator."""

    def __init__(
        self, api: ApiServer, specs: Specs, *, settings: PodSettings, wake: Callable[[], None]
    ) -> None:
        self._questions = _Questions(api)
        self.specs = specs
        self._settings = settings
        self._wake = wake
        self._trials: dict[Name, _Trial] = {}
        self._alike: dict[Asks, Asks] = {}
        """Thousands of jobs may ask the same, which is kept once."""
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
            trial.task = asyncio.get_running_loop().create_task(self._try(name, trial, document))

    def result(self, document: Json) -> str | None:
        """Return why Kubernetes would refuse the pods of a job; empty if it would not, ``None`` while unknown."""
        if is_over(document):
            return ""
        trial = self._trials.get(Name.of(document))
        is_of_job = trial is not None and trial.of[0] == document["metadata"]["uid"]
        return trial.verdict if trial is not None and is_of_job else None

    def asks(self, name: Name) -> Asks | None:
        """Say what the pods of a job ask of a node, as Kubernetes would take them."""
        trial = self._trials.get(name)
        return trial.asks if trial is not None else None

    def news(self) -> set[Name]:
        """Tell of which jobs something was found out since this was asked last."""
        self._questions.drop_stale()
        news, self._news = self._news, set()
        return news

    def forget(self, name: Name) -> None:
        """Forget a job that is gone."""
        trial = self._trials.pop(name, None)
        if trial is not None and trial.task is not None:
            trial.task.cancel()

    async def close(self) -> None:
        """Ask no more."""
        for name in list(self._trials):
            self.forget(name)
        self._questions.cancel()

    async def _try(self, name: Name, trial: _Trial, document: Json) -> None:
        try:
            job = self.specs.parse(document)
        except jobfile.JobFileError:
            # The reader of the job reports that itself.
            self._find(name, trial, verdict="")
            return
        attempt = 0
        while not await self._is_taken(name, trial, document, job=job):
            await asyncio.sleep(AGAIN_S[min(attempt, len(AGAIN_S) - 1)])
            attempt += 1

    async def _is_taken(self, name: Name, trial: _Trial, document: Json, *, job: Job) -> bool:
        """Ask once, and learn from the answer; thousands of refused jobs keep no pod until they ask again."""
        draft = _draft(name, document, job=job, settings=self._settings)
        if trial.asks is None:
            self._learn(name, trial, asks=_read(name, draft.pod))
        question = self._questions.answer(_Alike.of(document), name, draft.pod)
        # A caller that no longer waits must not cancel the answer for the others.
        answer = await asyncio.shield(question)
        # With what the cluster adds to it: usual requests, the overhead of its runtime.
        self._learn(name, trial, asks=answer.asks)
        # A quota that pods of this job fill already says nothing about its template.
        is_taken = answer.verdict == "" or (answer.is_crowded and _has_pods(document))
        if is_taken or answer.verdict is not None:
            self._find(name, trial, verdict=draft.flaw if is_taken else answer.verdict or "")
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


def _draft(name: Name, document: Json, *, job: Job, settings: PodSettings) -> _Draft:
    try:
        booking = Booking(NOWHERE, 0)
        return _Draft(
            building.make_trainer(dict(document), job, booking=booking, settings=settings)
        )
    except WrongDocument as error:
        # The API server knows best what is wrong; only if it accepts the pod, we report our own error.
        flaw = "; ".join(error.lines())[:LONGEST]
        return _Draft(building.make_bare(dict(document), job), flaw)
    except Exception as error:
        log.info("no pod can be built from the template of job %s", name, exc_info=True)
        flaw = f"spec.template cannot be read as a pod: {error}"[:LONGEST]
        return _Draft(building.make_bare(dict(document), job), f"{flaw}; correct it")


def _counts(question: asyncio.Task[_Answer], now: float) -> bool:
    """Whether the answer counts for others alike."""
    return not question.done() or now < question.result().until


def _read(name: Name, pod: Json) -> Asks | None:
    """Read what a pod asks; nothing if it cannot be read, of which the API server says more."""
    try:
        asks = read_asks(pod, NOWHERE)
        hash(asks)  # A value that is neither text nor a number would fail only later, in a cache.
    except NoAmount:
        return None
    except Exception:
        log.info("the resources of the pods of job %s cannot be read", name, exc_info=True)
        return None
    return asks


def _has_pods(document: Json) -> bool:
    return bool((document.get("status") or {}).get("pods"))


def _verdict(error: Rejected, remedy: str) -> str | None:
    if error.status >= SERVER_ERROR:
        return None
    why = f"Kubernetes would refuse its pods: {SUBJECT.sub('', str(error))}"
    return f"{why[:LONGEST]}; {remedy}"
