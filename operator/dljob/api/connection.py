"""
The place where jobs run, as a program asks it: one ``dljob up``, or a cluster.

:class:`Connection` is synchronous, also in a notebook: :class:`Questions` asks in another thread where an event loop
runs in the caller's, because the backend of a cluster runs a loop of its own.
"""

import asyncio
import threading
import time
import warnings
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Self, TypeVar

from dljob.api.jobs import Gpus, Job, demand_of, problems_of, raise_all
from dljob.api.refusals import NeverHolds, NotFound, Problem, TimedOut, WrongUse, refusing
from dljob.api.timelines import Timeline
from dljob.api.values import Event, Explanation, Notice, Plan
from dljob.client.backend import Backend, Json, Keeping, LogQuery, never
from dljob.client.changing import change_job, suspend_job
from dljob.client.goals import DELETED, FINISHED, LOOK_S, Goal, Verdict, read_goal
from dljob.client.jobviews import JobView
from dljob.client.places import Place, choose

FATES = {None: Keeping.USUAL, True: Keeping.KEEP, False: Keeping.REMOVE}

Named = str | Job | JobView
"""A job, or its name."""


@dataclass(frozen=True, kw_only=True)
class Logs:
    """A selection of a job's output."""

    node: str = ""
    lines: int | None = None
    follow: bool = False
    since: float | None = None


def connect(
    state: str | PathLike[str] | None = None,
    *,
    kubeconfig: str = "",
    context: str = "",
    namespace: str = "",
) -> "Connection":
    """
    Find the place where jobs run by the rules of the command; docs/reference/command.md lists them.

    ``state`` names the state folder of a ``dljob up``; the others name a cluster. Nothing is asked
    yet: where no server answers, the first question raises :class:`~dljob.api.refusals.Unreachable`.
    """
    return Connection(
        choose_backend(state, kubeconfig=kubeconfig, context=context, namespace=namespace)
    )


def choose_backend(
    state: str | PathLike[str] | None, *, kubeconfig: str, context: str, namespace: str
) -> Backend:
    place = Place(
        state=None if state is None else Path(state),
        kubeconfig=kubeconfig,
        context=context,
        namespace=namespace,
    )
    with refusing():
        return choose(place)


class Connection:
    """Asks one place, from one thread; close it in the end. A followed log ends once ``is_over`` returns true."""

    def __init__(self, backend: Backend, *, is_over: Callable[[], bool] = never) -> None:
        self._backend = backend
        self._is_over = is_over
        self._questions = Questions()
        self._ask = self._questions.ask

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._ask(self._backend.close)
        self._questions.close()

    def submit(self, job: Job) -> JobView:
        """Submit a job; raises :class:`~dljob.api.refusals.WrongJob` with all its problems."""
        return self.submit_all([job])[0]

    def submit_all(self, jobs: list[Job]) -> list[JobView]:
        """Submit several jobs, all or none."""
        documents = _check(jobs)
        created = self._ask(lambda: self._backend.create_jobs(documents))
        for notice in created.notices:
            warnings.warn(notice, Notice, stacklevel=2)
        return [self._view(item) for item in created.items]

    def plan(self, *jobs: Job) -> Plan:
        """Return the decision that would follow if these jobs were submitted now."""
        documents = _check(jobs)
        found = self._ask(lambda: self._backend.preview(documents))
        return Plan(tuple(found.effects), tuple(found.notices), found.tells_others)

    def what_if(self, **differences: str | int) -> Json:
        """
        Play two futures of all jobs: as it is, and with these differences, such as ``job="bert", most=2``.

        The differences are the options of ``dljob what-if``; the answer is what it prints with ``-o json``.
        """
        return self._ask(lambda: self._backend.what_if(differences))

    # --- reading

    def jobs(self, selector: str = "") -> list[JobView]:
        """List the jobs, or those whose labels are selected, such as ``team=vision``."""
        found = self._ask(lambda: self._backend.list_jobs(selector))
        return [self._view(item) for item in found.items]

    def get(self, job: Named) -> JobView:
        """Return a job as it is now."""
        return self._view(self._ask(lambda: self._backend.get_job(_name_of(job))))

    def why(self, job: Named) -> Explanation:
        """Explain what a job does now."""
        told = self._ask(lambda: self._backend.explain(_name_of(job)))
        return Explanation(_name_of(job), told["message"], tuple(told["assumptions"]))

    def events(self, job: Named = "") -> list[Event]:
        """List recent events of a job, or of all jobs, oldest first."""
        found = self._ask(lambda: self._backend.list_events(_name_of(job)))
        return [Event.of(each) for each in found]

    def history(self, job: Named, limit: int = 100) -> list[Event]:
        """List the decisions about a job, oldest first; ``reason`` is the kind of decision."""
        found = self._ask(lambda: self._backend.list_history(_name_of(job), limit))
        return [Event.of(each) for each in found]

    def timeline(self, since: float = 0.0) -> Timeline:
        """Read the record since a time, in seconds since the epoch; ``show()`` shows it."""
        return Timeline(self._ask(lambda: self._backend.read_record(since)))

    def logs(self, job: Named, which: Logs = Logs()) -> Generator[str]:
        """Yield the lines of a job's output, with their ends."""
        has_left = threading.Event()
        query = LogQuery(
            which.node,
            which.lines,
            which.follow,
            which.since,
            lambda: has_left.is_set() or self._is_over(),
        )
        try:
            lines = self._ask(lambda: self._backend.read_logs(_name_of(job), query))
            while (line := self._ask(lambda: next(lines, None))) is not None:
                yield line.text.decode("utf-8", "replace")
        finally:
            # An interrupt in a notebook ends this wait for the next line, and not the thread that reads it. All later
            # questions are behind it, and `close` as well, until the backend ends the log at its next look.
            has_left.set()

    def wait(self, job: Named, goal: str = FINISHED, *, timeout: float | None = None) -> JobView:
        """
        Return a job when it is finished, is in the phase ``goal``, or has ``condition=NAME[=False]``.

        A job that finished may have failed: see its ``phase``. Raises
        :class:`~dljob.api.refusals.NeverHolds` when the job can no longer come to be so, and
        :class:`~dljob.api.refusals.TimedOut` after ``timeout`` seconds.
        """
        found = self._wait(Awaited.of(job, goal, timeout))
        assert found is not None
        return found

    def wait_until_gone(self, job: Named, *, timeout: float | None = None) -> None:
        """Return when the job no longer exists."""
        self._wait(Awaited.gone(job, timeout))

    # --- changing

    def scale(self, job: Named, gpus: Gpus) -> JobView:
        """Change the numbers of GPUs that a job may have: ``4``, one of ``[1, 2, 4]``, or ``"1-4"``."""
        demand = demand_of(gpus)

        def alter(document: Json) -> Json:
            spec = document["spec"]
            changed = demand.changed(spec["gpus"])
            if changed == spec["gpus"]:
                return document
            return {**document, "spec": {**spec, "gpus": changed}}

        change = self._ask(lambda: change_job(self._backend, _name_of(job), alter=alter))
        return self._view(change.after)

    def suspend(self, job: Named) -> JobView:
        """Take all GPUs from a job; it saves itself, and waits until it is resumed."""
        return self._set_suspended(job, suspended=True)

    def resume(self, job: Named) -> JobView:
        """Put a suspended job into the queue again, at the place that it had."""
        return self._set_suspended(job, suspended=False)

    def cancel(self, job: Named, *, keep_checkpoints: bool | None = None) -> None:
        """
        End a job without saving it, and forget it.

        On one machine the checkpoints in the job's own folder are removed with the job, except
        those of a Completed job; ``keep_checkpoints`` says otherwise.
        """
        name = _name_of(job)
        self._ask(lambda: self._backend.delete_job(name, checkpoints=FATES[keep_checkpoints]))

    # --- asking

    def _set_suspended(self, job: Named, *, suspended: bool) -> JobView:
        change = self._ask(lambda: suspend_job(self._backend, _name_of(job), suspended=suspended))
        return self._view(change.after)

    def _wait(self, awaited: "Awaited") -> JobView | None:
        pause = LOOK_S * self._backend.look_seconds
        return _wait_for(lambda: self._look(awaited.name), awaited, pause=pause)

    def _look(self, name: str) -> JobView | None:
        try:
            return self.get(name)
        except NotFound:
            return None

    def _view(self, document: Json) -> JobView:
        return JobView.of(document, self._ask(lambda: self._backend.home))


def _name_of(job: Named) -> str:
    return job if isinstance(job, str) else job.name


def _check(jobs: tuple[Job, ...] | list[Job]) -> list[Json]:
    """Return the documents of jobs; raise all their problems."""
    documents = [job.document for job in jobs]
    raise_all([each for n, document in enumerate(documents) for each in problems_of(document, n)])
    return documents


@dataclass(frozen=True)
class Awaited:
    """The goal of a wait for a job, with a time-out in seconds; ``None``: no time-out."""

    name: str
    goal: Goal
    timeout: float | None

    @classmethod
    def of(cls, job: Named, goal: str, timeout: float | None) -> Self:
        with refusing():
            awaited = read_goal(goal)
        if awaited.phase == DELETED:
            raise WrongUse(
                Problem("a job that is gone cannot be returned", "call wait_until_gone instead")
            )
        return cls(_name_of(job), awaited, timeout)

    @classmethod
    def gone(cls, job: Named, timeout: float | None) -> Self:
        return cls(_name_of(job), Goal(phase=DELETED), timeout)

    def holds(self, job: JobView | None) -> bool:
        """Check the goal; raises :class:`~dljob.api.refusals.NeverHolds` if the job can no longer reach it."""
        verdict = self.goal.judge(job)
        if verdict is Verdict.NEVER:
            if job is None:
                problem = Problem(f"there is no job {self.name}", "jobs() lists those that are")
                raise NeverHolds(problem)
            why = f" ({job.message})" if job.message else ""
            fate = f"{self.name} is {job.phase}{why}, and will not be {self.goal} any more"
            raise NeverHolds(Problem(fate, "see logs()"))
        return verdict is Verdict.HOLDS

    def late(self, job: JobView | None) -> TimedOut:
        """Return the error of a time-out, with the job's present state."""
        now = "" if job is None else f" ({job.phase}{f': {job.message}' if job.message else ''})"
        missed = f"{self.name} is not {self.goal} after {self.timeout:g} s{now}"
        return TimedOut(Problem(missed, "wait longer, or ask why()"))


def _wait_for(
    look: Callable[[], JobView | None], awaited: Awaited, *, pause: float
) -> JobView | None:
    until = None if awaited.timeout is None else time.monotonic() + awaited.timeout
    while True:
        job = look()
        if awaited.holds(job):
            return job
        left = None if until is None else until - time.monotonic()
        if left is not None and left <= 0.0:
            raise awaited.late(job)
        time.sleep(pause if left is None else min(pause, left))


T = TypeVar("T")


class Questions:
    def __init__(self) -> None:
        self._apart: ThreadPoolExecutor | None = None

    def ask(self, question: Callable[[], T]) -> T:
        """Return the answer, or raise a refusal of :mod:`dljob.api.refusals`."""
        with refusing():
            if not _has_event_loop():
                return question()
            if self._apart is None:
                # One thread: the backend of a cluster is not made for several at once.
                self._apart = ThreadPoolExecutor(1, thread_name_prefix="dljob")
            return self._apart.submit(question).result()

    def close(self) -> None:
        if self._apart is not None:
            self._apart.shutdown()


def _has_event_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
