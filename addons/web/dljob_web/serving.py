"""
The live page and its API, over HTTP. See docs/page.md.

All of it comes from a :class:`Source`. The record and the lists are read and packed once for all viewers, on a thread
(:mod:`dljob_web.renewing`); a viewer that has the newest already gets no more than that answer.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final, NamedTuple, Protocol

from aiohttp import web
from aiohttp.typedefs import Middleware

from dljob.core.recording.record import Record, encode
from dljob.core.recording.sums import cut
from dljob.known_policies import list_live
from dljob_web.answering import (
    Packed,
    SourceError,
    answer_packed,
    pack_items,
    speak_plainly,
    write,
)
from dljob_web.document import write_live_page
from dljob_web.guarding import CALLER, Caller, Guard, Handler, add_headers
from dljob_web.log_threads import LogThreads
from dljob_web.page_data import make_page_data
from dljob_web.queue_data import make_queue
from dljob_web.renewing import Renewed

Json = dict[str, Any]

PRESENT_S: Final = 5.0
"""The interval at which jobs and GPUs are read while there are viewers."""

RECORD_S: Final = 4.0
"""The interval at which the record is read while there are viewers."""

STILL_PARTS: Final = 500
"""A picture in which nothing has happened but time has passed is renewed when it is older by such a part."""

LARGEST_REQUEST: Final = 1 << 16

MOST_PLANNED: Final = 20
"""The number of jobs in a plan; the API server checks each of them in a request of its own."""

MOST_EXPLAINED: Final = 2
"""The limit of concurrent explanations, each of which needs a thread."""

MOST_KEPT: Final = 64
"""The number of jobs whose latest explanations are kept for all their viewers."""


class Source(Protocol):
    """The source of the data; each method may block, and raises :class:`SourceError`."""

    def read_record(self, since: float) -> Record:
        """Read what happened since a time, in seconds since the epoch."""

    def list_jobs(self) -> list[Json]:
        """List all jobs, as ``dljob get -o json`` does."""

    def explain(self, name: str) -> Json:
        """Show a job and why it does what it does, as ``dljob why -o json`` does."""

    def list_nodes(self) -> list[Json]:
        """List every GPU by its node, as ``dljob gpu list -o json`` does."""

    @property
    def withheld(self) -> str:
        """The reason why these viewers get no futures, with the remedy; empty: they get them."""

    def what_if(self, question: Any, *, is_gone: Callable[[], bool]) -> Json:
        """Play two futures: one as it is, and one in which something is different; ``is_gone`` ends both."""

    def plan(self, documents: list[Json], token: str) -> Json:
        """Plan for jobs that are not submitted, as ``dljob submit --dry-run -o json`` does, as far as the viewers may see."""

    def read_log(self, name: str, *, node: str, token: str) -> Json:
        """Read the last lines of a job's output on a node; without a node, on one that it uses."""


class Happened(NamedTuple):
    """The record at one time, packed for viewers."""

    record: Record
    page: Packed
    csv: Packed


class Listed(NamedTuple):
    """The jobs at one time, and the waiting ones."""

    jobs: Packed
    queue: Packed


ANYONE: Final = Caller()


class Asking:
    """The turns of viewers who ask about the future, which takes seconds of a core: one each, and all of them a few."""

    def __init__(self, most: int = 1) -> None:
        self._most = most
        self._viewers: set[str] = set()

    @contextmanager
    def turn(self, viewer: str) -> Iterator[None]:
        """Let a viewer ask within the block; raises :class:`SourceError` if the viewer must wait."""
        is_own = viewer in self._viewers
        if is_own or len(self._viewers) >= self._most:
            whose = "another question of yours" if is_own else "another question"
            raise SourceError(f"{whose} is being answered; ask again in a moment", status=429)
        # Nothing awaits between the check and this, so that two requests cannot take one turn.
        self._viewers.add(viewer)
        try:
            yield
        finally:
            self._viewers.discard(viewer)


class Server:
    """Answers from one source; :meth:`application` is what aiohttp runs."""

    def __init__(
        self,
        source: Source,
        *,
        every_s: float = RECORD_S,
        present_s: float = PRESENT_S,
        asking: Asking | None = None,
        logs: LogThreads | None = None,
    ) -> None:
        """``asking`` and ``logs`` may be shared by several servers, with their limits."""
        self._source = source
        # Each is made on a thread of the pool, so that a source is asked by several threads at
        # once.
        self._happened: Renewed[Happened] = Renewed(self._read, every_s=every_s)
        self._listed: Renewed[Listed] = Renewed(lambda _: self._list_jobs(), every_s=present_s)
        self._nodes = Renewed(lambda _: pack_items(source.list_nodes()), every_s=present_s)
        self._policies = pack_items(list_live())
        self._asking = asking or Asking()
        self._cutting = asyncio.Lock()
        self._explaining = asyncio.Semaphore(MOST_EXPLAINED)
        self._logs = logs or LogThreads()
        self._explained: dict[str, Renewed[Packed]] = {}
        self._present_s = present_s

    def application(self, guard: Guard) -> web.Application:
        application = make_application(guard.check, write_live_page())
        add_routes(application, lambda handler: handler.__get__(self))
        return application

    async def tell_page(self, request: web.Request) -> web.Response:
        happened = await self._happened.get()
        return answer_packed(request, happened.page, "application/json")

    async def tell_record(self, request: web.Request) -> web.Response:
        since = read_since(request)
        record = (await self._happened.get()).record
        # In turn, because a large record takes seconds of a core.
        async with self._cutting:
            packed = await asyncio.to_thread(_pack_record, record, since)
        return answer_packed(request, packed, "application/jsonl")

    async def tell_usage(self, request: web.Request) -> web.Response:
        return answer_packed(request, (await self._happened.get()).csv, "text/csv")

    async def list_jobs(self, request: web.Request) -> web.Response:
        return answer_packed(request, (await self._listed.get()).jobs, "application/json")

    async def show_job(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        explained = self._explained.pop(name, None) or Renewed(
            lambda _: Packed.of(write(self._source.explain(name))), every_s=self._present_s
        )
        # The last one asked for is the last one dropped.
        self._explained[name] = explained
        while len(self._explained) > MOST_KEPT:
            del self._explained[next(iter(self._explained))]
        async with self._explaining:
            packed = await explained.get()
        return answer_packed(request, packed, "application/json")

    async def list_queue(self, request: web.Request) -> web.Response:
        return answer_packed(request, (await self._listed.get()).queue, "application/json")

    async def list_nodes(self, request: web.Request) -> web.Response:
        return answer_packed(request, await self._nodes.get(), "application/json")

    async def list_policies(self, request: web.Request) -> web.Response:
        return answer_packed(request, self._policies, "application/json")

    async def tell_withheld(self, request: web.Request) -> web.Response:
        told = {"allowed": not self._source.withheld, "reason": self._source.withheld}
        return answer_packed(request, Packed.of(write(told)), "application/json")

    async def suppose(self, request: web.Request) -> web.Response:
        """Answer with two futures of all jobs."""
        if self._source.withheld:
            raise SourceError(self._source.withheld, status=403)
        return await self._ask(
            request,
            lambda question, _: self._source.what_if(question, is_gone=lambda: _is_gone(request)),
        )

    async def plan(self, request: web.Request) -> web.Response:
        """Answer with the decision about jobs that are not submitted, and its effects on all others."""
        return await self._ask(
            request, lambda document, token: self._source.plan(read_documents(document), token)
        )

    async def tell_log(self, request: web.Request) -> web.Response:
        name, node = request.match_info["name"], request.query.get("node", "")
        caller = request.get(CALLER, ANYONE)
        told = await self._logs.read(
            caller.name, lambda: self._source.read_log(name, node=node, token=caller.token)
        )
        return answer_packed(request, Packed.of(write(told)), "application/json")

    async def _ask(self, request: web.Request, ask: Callable[[Any, str], Json]) -> web.Response:
        """Answer a question about all jobs; each user has one turn at a time."""
        try:
            question = json.loads(await request.read())
        except (ValueError, RecursionError) as error:
            raise SourceError("the question is no JSON", status=400) from error
        caller = request.get(CALLER, ANYONE)
        # The turn begins after the request has come in, so that a slow viewer holds back no other one.
        with self._asking.turn(caller.name):
            packed = await asyncio.to_thread(lambda: Packed.of(write(ask(question, caller.token))))
        return answer_packed(request, packed, "application/json")

    def _read(self, before: Happened | None) -> Happened:
        record = self._source.read_record(0.0)
        if before is not None and _is_still(before.record, record):
            return before
        data = make_page_data(record)
        return Happened(record, Packed.of(write(data.document())), Packed.of(data.sums.csv))

    def _list_jobs(self) -> Listed:
        jobs = self._source.list_jobs()
        return Listed(pack_items(jobs), pack_items(make_queue(jobs)))


Answering = Callable[[Server, web.Request], Awaitable[web.Response]]


class Route(NamedTuple):
    method: str
    path: str
    handler: Answering


ROUTES: Final = (
    Route("GET", "/api/v1/page", Server.tell_page),
    Route("GET", "/api/v1/record", Server.tell_record),
    Route("GET", "/api/v1/usage.csv", Server.tell_usage),
    Route("GET", "/api/v1/jobs", Server.list_jobs),
    Route("GET", "/api/v1/jobs/{name:.+}", Server.show_job),
    Route("GET", "/api/v1/logs/{name:.+}", Server.tell_log),
    Route("GET", "/api/v1/queue", Server.list_queue),
    Route("GET", "/api/v1/nodes", Server.list_nodes),
    Route("GET", "/api/v1/policies", Server.list_policies),
    Route("GET", "/api/v1/what-if", Server.tell_withheld),
    Route("POST", "/api/v1/what-if", Server.suppose),
    Route("POST", "/api/v1/plan", Server.plan),
)
"""The routes of all servers; docs/page-api.yaml describes them."""


def add_routes(application: web.Application, bind: Callable[[Answering], Handler]) -> None:
    for method, path, handler in ROUTES:
        add = application.router.add_get if method == "GET" else application.router.add_post
        add(path, bind(handler))


def make_application(check: Middleware, page: str) -> web.Application:
    """Make an application that serves an empty page and checks every request."""
    shell = Packed.of(page)

    async def show(request: web.Request) -> web.Response:
        return answer_packed(request, shell, "text/html")

    application = web.Application(
        middlewares=[check, speak_plainly], client_max_size=LARGEST_REQUEST
    )
    application.on_response_prepare.append(add_headers)
    application.router.add_get("/", show)
    return application


def _is_gone(request: web.Request) -> bool:
    return request.transport is None or request.transport.is_closing()


def _is_still(old: Record, new: Record) -> bool:
    """Return true if the new record would draw the same picture."""
    passed = new.header.until - old.header.until
    little = (old.header.until - old.begin) / STILL_PARTS
    return (
        passed < little
        and replace(new.header, until=old.header.until) == old.header
        and new.lines == old.lines
    )


def _pack_record(record: Record, since: float) -> Packed:
    return Packed.of("".join(encode(_cut(record, since))))


def _cut(record: Record, since: float) -> Record:
    if since <= record.header.since:
        return record
    return Record.of(replace(record.header, since=since), cut(record.lines, since))


def read_documents(body: object) -> list[Json]:
    """Return the DLJobs of a request: one, a list, or a DLJobList."""
    found = body.get("items") if isinstance(body, dict) and "items" in body else body
    listed = found if isinstance(found, list) else [found]
    documents = [each for each in listed if isinstance(each, dict)]
    if not documents or len(documents) < len(listed):
        raise SourceError("the request has no DLJob; send one as JSON, or a list", status=400)
    if len(documents) > MOST_PLANNED:
        problem = f"the request has {len(documents)} DLJobs; plan at most {MOST_PLANNED} at a time"
        raise SourceError(problem, status=400)
    return documents


def read_since(request: web.Request) -> float:
    text = request.query.get("since", "0")
    try:
        since = float(text)
    except ValueError:
        since = -1.0
    if not 0.0 <= since < float("inf"):
        raise SourceError(
            f"since: {text!r} is no time; write seconds since 1970, such as 1700000000", status=400
        )
    return since
