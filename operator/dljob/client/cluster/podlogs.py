"""
The output of a job's training, from the logs that the kubelets keep of its pods.

Each start of a container has a log of its own; the kubelet keeps that of the latest start and of the
one before it. While a job is followed, a connection that is cut is opened again where it was.
"""

import asyncio
import math
import re
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from dljob.client.backend import Json, LogLine, LogQuery
from dljob.client.cluster.refusals import FORBIDDEN
from dljob.client.jobviews import FINAL
from dljob.core.documents.rules.podrules import TRAINER
from dljob.kube import names
from dljob.kube.client import ApiServer, NotFound, Rejected, Unreachable
from dljob.kube.resources import DLJOBS, PODS

LOOK_S: Final = 2.0
"""The interval of checks for new pods and for the end of the job."""
OVER_S: Final = 0.5
"""The interval at which a follower without lines checks ``is_over``."""
NOT_YET: Final = 400
"""The status for a container without a log: it has not begun, or had no earlier start."""
LONGEST_LINE: Final = 1 << 20
"""Longer lines are passed on in pieces."""
LARGEST_TAIL: Final = 4 << 20
_STAMP: Final = re.compile(rb"^(\d{4}-\d\d-\d\dT\S+) ?")


class Job(NamedTuple):
    namespace: str
    name: str


class _Log(NamedTuple):
    """The log of one start of a container."""

    pod: str
    node: str
    start: int
    """The number of earlier restarts of the container."""


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


def _trainer(pod: Json) -> Json:
    statuses = (pod.get("status") or {}).get("containerStatuses") or ()
    return next((each for each in statuses if each["name"] == TRAINER), {})


def _restarts(pod: Json) -> int:
    return int(_trainer(pod).get("restartCount", 0))


def _logs_of(pod: Json) -> list[_Log]:
    name, node, restarts = pod["metadata"]["name"], node_of(pod), _restarts(pod)
    starts = range(max(0, restarts - 1), restarts + 1) if node else ()
    return [_Log(name, node, start) for start in starts]


async def read(api: ApiServer, job: Job, query: LogQuery) -> AsyncIterator[LogLine]:
    """Yield the last lines of each node, one node after the other."""
    last: dict[str, deque[bytes]] = {}
    for pod in await list_pods(api, job):
        if query.node in ("", node_of(pod)):
            lines = last.setdefault(node_of(pod), deque(maxlen=query.lines))
            for log in _logs_of(pod):
                asked = _begin(query, is_former=log.start < _restarts(pod))
                await _read_once(api, job, log, asked=asked, lines=lines)
    for node, lines in last.items():
        for line in lines:
            yield LogLine(node, line)


async def _read_once(
    api: ApiServer, job: Job, log: _Log, *, asked: Mapping[str, str], lines: deque[bytes]
) -> None:
    try:
        lines.extend([line async for line in _iter_lines(api, job, log.pod, asked)])
    except NotFound:
        pass  # It was removed just now.
    except Rejected as error:
        if error.status != NOT_YET:
            raise


def _begin(query: LogQuery, *, is_former: bool) -> dict[str, str]:
    """Write the parameters of a request for a log that was not read before."""
    asked = {"container": TRAINER}
    if is_former:
        asked["previous"] = "true"
    if query.lines is not None:
        asked["tailLines"] = str(query.lines)
    if query.most_bytes:
        # The kubelet counts from the first of these lines, so the limit must exceed all usual lines.
        asked["limitBytes"] = str(LARGEST_TAIL)
    if query.since is not None:
        # The kubelet takes whole seconds of at least 1.
        asked["sinceSeconds"] = str(max(1, math.ceil(query.since)))
    return asked


async def _iter_lines(
    api: ApiServer, job: Job, pod: str, query: Mapping[str, str]
) -> AsyncIterator[bytes]:
    """Yield lines with their ends; each state of a progress bar is a line."""
    begun = b""
    async with api.stream(PODS.path(job.namespace, pod, "log"), query) as content:
        async for block in content.iter_any():
            lines = (begun + block).splitlines(keepends=True)
            is_begun = not lines[-1].endswith((b"\n", b"\r")) and len(lines[-1]) < LONGEST_LINE
            begun = lines.pop() if is_begun else b""
            for line in lines:
                yield line
    if begun:
        yield begun


# --- following ----------------------------------------------------------------------------


async def follow(
    api: ApiServer, job: Job, query: LogQuery, *, notice: Callable[[str], None]
) -> AsyncIterator[LogLine]:
    """Yield the output of a job until it has ended; ``notice`` takes the reason while a log cannot be read."""
    lines: asyncio.Queue[LogLine | None] = asyncio.Queue()
    follower = _Follower(api, job, query, lines.put_nowait, notice)
    following = asyncio.ensure_future(follower.follow())
    following.add_done_callback(lambda _: lines.put_nowait(None))
    try:
        while not query.is_over() and not (following.done() and lines.empty()):
            line = await _next(lines)
            if line is not None:
                yield line
        if following.done() and (error := following.exception()) is not None:
            raise error.exceptions[0] if isinstance(error, BaseExceptionGroup) else error
    finally:
        following.cancel()
        # Until all its requests have ended, because the session is closed after this.
        await asyncio.gather(following, return_exceptions=True)


async def _next(lines: "asyncio.Queue[LogLine | None]") -> LogLine | None:
    with suppress(TimeoutError):
        async with asyncio.timeout(OVER_S):
            return await lines.get()
    return None


@dataclass
class _Follower:
    """Follows all logs of a job."""

    api: ApiServer
    job: Job
    query: LogQuery
    put: Callable[[LogLine], None]
    notice: Callable[[str], None]
    begun: set[_Log] = field(default_factory=set)
    until: dict[_Log, bytes] = field(default_factory=dict)
    """The time of the last line that was read."""
    is_first_look: bool = True

    async def follow(self) -> None:
        """Put all lines until the job has ended."""
        async with asyncio.TaskGroup() as readers:
            while not await self._look(readers):
                await asyncio.sleep(LOOK_S)

    async def _look(self, readers: asyncio.TaskGroup) -> bool:
        """Begin to read new logs; return whether the job has ended."""
        try:
            # Its last output is readable once it is seen to have ended.
            has_ended = await self._has_ended()
            pods = await list_pods(self.api, self.job)
        except (Rejected, Unreachable) as error:
            if self.is_first_look or getattr(error, "status", 0) == FORBIDDEN:
                raise
            self.notice(str(error))
            return False
        # All output of later logs is new.
        query = self.query if self.is_first_look else LogQuery()
        for log in {log for pod in pods for log in _logs_of(pod)} - self.begun:
            if self.query.node in ("", log.node):
                self.begun.add(log)
                readers.create_task(self._read(log, query))
        self.is_first_look = False
        return has_ended

    async def _has_ended(self) -> bool:
        try:
            job = await self.api.get(DLJOBS, self.job.name, self.job.namespace)
        except NotFound as error:
            # A server that starts knows of no DLJobs for a while, and gives no reason.
            if self.is_first_look or not error.reason:
                raise
            return True
        return (job.get("status") or {}).get("phase") in FINAL

    async def _read(self, log: _Log, query: LogQuery) -> None:
        """
        Read one log to its end.

        An API server whose connection to the kubelet is cut ends its answer as if that were the end
        of the log; so it is the end only if the container had ended before it was asked.
        """
        is_former = False
        while True:
            try:
                pod = await self.api.get(PODS, log.pod, self.job.namespace)
                is_former = _restarts(pod) > log.start
                is_rest = is_former or not (_trainer(pod).get("state") or {}).get("running")
                # All that is left is new, once a line was read.
                rest = LogQuery() if log in self.until else query
                asked = _begin(rest, is_former=is_former)
                await self._read_on(log, asked, is_rest=is_rest)
                if is_rest:
                    return
            except NotFound:
                return
            except Rejected as error:
                if error.status == FORBIDDEN:
                    raise
                if error.status == NOT_YET:
                    # The next look finds it begun, or gone. An earlier start has no log.
                    self.begun -= set() if is_former else {log}
                    return
                self.notice(f"the log on {log.node} cannot be read: {error}")
            except Unreachable as error:
                self.notice(str(error))
            await asyncio.sleep(LOOK_S)

    async def _read_on(self, log: _Log, asked: dict[str, str], *, is_rest: bool) -> None:
        """Put the lines that were not read before."""
        known, goes_on = self.until.get(log, b""), False
        asked |= {"follow": "true", "timestamps": "true"}
        if known:
            asked["sinceTime"] = known.decode()
        async for line in _iter_lines(self.api, self.job, log.pod, asked):
            if not is_rest and not line.endswith((b"\n", b"\r")):
                return  # The connection was cut within this line.
            stamp = None if goes_on else _STAMP.match(line)
            goes_on = not line.endswith(b"\n")
            if stamp is None:
                self.put(LogLine(log.node, line))
            elif stamp[1] > known:
                self.until[log] = stamp[1]
                self.put(LogLine(log.node, line[stamp.end() :]))
