"""
The output of a job's training, from the logs that the kubelets keep of its pods.

Each start of a container has a log of its own; the kubelet keeps that of the latest start and of the
one before it. While a job is followed, a connection that is cut is opened again where it was.
"""

import asyncio
import math
import re
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from dljob.client.backend import Json, LogLine, LogQuery
from dljob.client.jobviews import FINAL
from dljob.core.documents.rules.podrules import TRAINER
from dljob.kube import names
from dljob.kube.client import ApiServer, NotFound, Rejected, Unreachable
from dljob.kube.resources import DLJOBS, PODS

LOOK_S: Final = 2.0
"""The interval of checks for new pods and for the end of the job."""
OVER_S: Final = 0.5
"""The interval at which a follower without lines checks ``is_over``."""
FORBIDDEN: Final = 403
NOT_YET: Final = 400
"""The status for a container without a log: it has not begun, or had no earlier start."""
LONGEST_LINE: Final = 1 << 20
"""Longer lines are passed on in pieces."""
LARGEST_TAIL: Final = 4 << 20
_STAMP = re.compile(rb"^(\d{4}-\d\d-\d\dT\S+) ?")


class Job(NamedTuple):
    namespace: str
    name: str


class _Log(NamedTuple):
    """The log of one start of a container."""

    pod: str
    node: str
    start: int
    """The number of earlier restarts of the container."""
    is_former: bool = False
    """True if a later start of the container exists."""


async def list_pods(api: ApiServer, job: Job) -> list[Json]:
    """List the training pods of a job in the order of their creation."""
    labels = f"{names.JOB_LABEL}={job.name},{names.ROLE_LABEL}={TRAINER}"
    listing = await api.list(PODS, job.namespace, labels=labels)
    return sorted(listing.items, key=_serial)


def _serial(pod: Json) -> int:
    text = pod["metadata"].get("labels", {}).get(names.SERIAL_LABEL, "0")
    return int(text) if text.isdigit() else 0


def node_of(pod: Json) -> str:
    return str(pod["spec"].get("nodeName", ""))


def _logs_of(pods: Sequence[Json], node: str) -> list[_Log]:
    """List all possible logs, oldest first."""
    logs = []
    for pod in pods:
        here, restarts = node_of(pod), _restarts(pod)
        if not here or node not in ("", here):
            continue
        name = pod["metadata"]["name"]
        if restarts:
            logs.append(_Log(name, here, restarts - 1, is_former=True))
        logs.append(_Log(name, here, restarts))
    return logs


def _restarts(pod: Json) -> int:
    return int(_trainer(pod).get("restartCount", 0))


def _trainer(pod: Json) -> Json:
    statuses = (pod.get("status") or {}).get("containerStatuses") or ()
    return next((each for each in statuses if each["name"] == TRAINER), {})


# --- once ---------------------------------------------------------------------------------


async def read(api: ApiServer, job: Job, query: LogQuery) -> AsyncIterator[LogLine]:
    """Yield the last lines of each node, one node after the other."""
    logs = _logs_of(await list_pods(api, job), query.node)
    for node in dict.fromkeys(log.node for log in logs):
        own = [log for log in logs if log.node == node]
        async for line in _read_all(api, job, own, query):
            yield LogLine(node, line)


async def _read_all(
    api: ApiServer, job: Job, logs: Sequence[_Log], query: LogQuery
) -> AsyncIterator[bytes]:
    if query.lines is None:
        for log in logs:
            async for line in _read_one(api, job, log, query):
                yield line
        return
    found: deque[bytes] = deque()
    for log in reversed(logs):
        missing = query._replace(lines=query.lines - len(found))
        if missing.lines == 0:
            break
        found.extendleft(reversed([line async for line in _read_one(api, job, log, missing)]))
    for line in found:
        yield line


async def _read_one(api: ApiServer, job: Job, log: _Log, query: LogQuery) -> AsyncIterator[bytes]:
    asked = {"container": TRAINER, **_since(query)}
    if log.is_former:
        asked["previous"] = "true"
    if query.lines is not None:
        asked["tailLines"] = str(query.lines)
    if query.most_bytes:
        # The kubelet counts from the first of these lines, so the limit must exceed all usual lines.
        asked["limitBytes"] = str(LARGEST_TAIL)
    try:
        async for line in _iter_lines(api, job, log, asked):
            yield line
    except NotFound:
        return  # It was removed just now.
    except Rejected as error:
        if error.status != NOT_YET:
            raise


def _since(query: LogQuery) -> dict[str, str]:
    """Write ``sinceSeconds``: the kubelet takes whole seconds of at least 1."""
    return {} if query.since is None else {"sinceSeconds": str(max(1, math.ceil(query.since)))}


async def _iter_lines(
    api: ApiServer, job: Job, log: _Log, query: Mapping[str, str]
) -> AsyncIterator[bytes]:
    """Yield lines with their ends; each state of a progress bar is a line."""
    path = PODS.path(job.namespace, log.pod, "log")
    begun = b""
    async with api.stream(path, query) as content:
        async for block in content.iter_any():
            lines = (begun + block).splitlines(keepends=True)
            is_begun = not lines[-1].endswith((b"\n", b"\r")) and len(lines[-1]) < LONGEST_LINE
            begun = lines.pop() if is_begun else b""
            for line in lines:
                yield line
    if begun:
        yield begun


# --- following ----------------------------------------------------------------------------


@dataclass
class _Reading:
    """The reading position in one log."""

    query: LogQuery
    """The number of last lines to begin with, and the time to begin at."""
    is_former: bool = False
    until: bytes = b""
    """The time of the last line that was read."""
    in_line: bool = False
    """True if that line is incomplete."""
    known_until: bytes = b""
    """Older lines were read before the connection was cut."""

    def begin(self) -> dict[str, str]:
        """Return the parameters of the next request, also after a cut connection."""
        self.in_line, self.known_until = False, self.until
        query = {"container": TRAINER, "follow": "true", "timestamps": "true"}
        if self.is_former:
            query["previous"] = "true"
        if self.until:
            query["sinceTime"] = self.until.decode()
        else:
            query |= _since(self.query)
            if self.query.lines is not None:
                query["tailLines"] = str(self.query.lines)
        return query

    def take(self, line: bytes) -> bytes | None:
        """Return a line's text; nothing if it was read before."""
        goes_on, self.in_line = self.in_line, not line.endswith(b"\n")
        if goes_on:
            return line
        found = _STAMP.match(line)
        if found is None:
            return line
        if found[1] <= self.known_until:
            return None
        self.until = found[1]
        return line[found.end() :]


@dataclass
class Follower:
    """Follows all logs of a job until it has ended."""

    api: ApiServer
    job: Job
    query: LogQuery
    look_seconds: float = LOOK_S
    notice: Callable[[str], None] = lambda _: None
    """Receives the reason while a log cannot be read."""
    _lines: "asyncio.Queue[LogLine]" = field(default_factory=asyncio.Queue)
    _readings: dict[tuple[str, int], _Reading] = field(default_factory=dict)
    _tasks: "set[asyncio.Future[None]]" = field(default_factory=set)
    _is_first_look: bool = True
    _error: BaseException | None = None
    """An error that no other try would cure."""

    async def follow(self) -> AsyncIterator[LogLine]:
        look = asyncio.ensure_future(self._look_until_ended())
        try:
            while not (look.done() and self._lines.empty()) and not self.query.is_over():
                line = await self._next(look)
                if line is not None:
                    yield line
            if look.done():
                await look
        finally:
            for task in (look, *self._tasks):
                task.cancel()
            # Until all have ended, because each has a connection
            # of the session that is closed after this.
            await asyncio.gather(look, *self._tasks, return_exceptions=True)

    async def _next(self, look: "asyncio.Future[None]") -> LogLine | None:
        """Wait for a line, the end of all logs, or the next check of ``is_over``."""
        if not self._lines.empty():
            return self._lines.get_nowait()
        getting = asyncio.ensure_future(self._lines.get())
        either: tuple[asyncio.Future[Any], ...] = (getting, look)
        try:
            await asyncio.wait(either, timeout=OVER_S, return_when=asyncio.FIRST_COMPLETED)
            return getting.result() if getting.done() else None
        finally:
            # Also on cancellation, else the getter waits for ever. No line is lost:
            # a queue gives a line out only when its getter runs, and one that is cancelled after it was
            # woken leaves the line for the next.
            getting.cancel()

    async def _look_until_ended(self) -> None:
        while not await self._look():
            await asyncio.sleep(self.look_seconds)
        if self._tasks:
            await asyncio.wait(self._tasks)
        self._insist_on_reading()

    def _insist_on_reading(self) -> None:
        if self._error is not None:
            raise self._error

    async def _look(self) -> bool:
        """Begin to read new logs; return whether the job has ended."""
        self._insist_on_reading()
        try:
            # Its last output is readable once it is seen to have ended.
            has_ended = await self._has_ended()
            pods = await list_pods(self.api, self.job)
        except (Rejected, Unreachable) as error:
            if self._is_first_look or getattr(error, "status", 0) == FORBIDDEN:
                raise
            self.notice(str(error))
            return False
        logs = [
            log
            for log in _logs_of(pods, self.query.node)
            if not log.is_former or self._is_first_look
        ]
        for log in logs:
            self._begin(log)
        self._is_first_look = False
        return has_ended

    async def _has_ended(self) -> bool:
        try:
            job = await self.api.get(DLJOBS, self.job.name, self.job.namespace)
        except NotFound as error:
            # A server that starts knows of no DLJobs for a while, and gives no reason.
            if self._is_first_look or not error.reason:
                raise
            return True
        return (job.get("status") or {}).get("phase") in FINAL

    def _begin(self, log: _Log) -> None:
        key = (log.pod, log.start)
        if key in self._readings:
            return
        # All output of later logs is new.
        query = self.query if self._is_first_look else LogQuery()
        self._readings[key] = reading = _Reading(query, log.is_former)
        task = asyncio.ensure_future(self._read(log, reading))
        self._tasks.add(task)
        task.add_done_callback(self._finish)

    def _finish(self, task: "asyncio.Future[None]") -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            # Kept for the next look. Read here in any case,
            # else asyncio logs it as never retrieved.
            self._error = self._error or task.exception()

    async def _read(self, log: _Log, reading: _Reading) -> None:
        """
        Read one log to its end.

        An API server whose connection to the kubelet is cut ends its answer as if that were the end
        of the log; so it is the end only if the container had ended before it was asked.
        """
        while not await self._read_on(log, reading):
            await asyncio.sleep(self.look_seconds)

    async def _read_on(self, log: _Log, reading: _Reading) -> bool:
        """Read a log until the connection ends; return whether the log is complete."""
        try:
            is_complete = await self._check_stopped(log, reading)
            async for line in _iter_lines(self.api, self.job, log, reading.begin()):
                is_whole = is_complete or line.endswith((b"\n", b"\r"))
                written = reading.take(line) if is_whole else None
                if written is not None:
                    self._lines.put_nowait(LogLine(log.node, written))
        except NotFound:
            return True
        except Rejected as error:
            return self._give_up(log, error)
        except Unreachable as error:
            self.notice(str(error))
            return False
        return is_complete

    async def _check_stopped(self, log: _Log, reading: _Reading) -> bool:
        pod = await self.api.get(PODS, log.pod, self.job.namespace)
        reading.is_former = log.is_former or _restarts(pod) > log.start
        return reading.is_former or not (_trainer(pod).get("state") or {}).get("running")

    def _give_up(self, log: _Log, error: Rejected) -> bool:
        """Return true if the log is complete; raise errors that no retry can cure."""
        if error.status == FORBIDDEN:
            raise error
        if error.status != NOT_YET:
            self.notice(f"the log on {log.node} cannot be read: {error}")
            return False
        if not self._readings[log.pod, log.start].is_former:
            # The next look finds it begun, or gone.
            del self._readings[log.pod, log.start]
        return True
