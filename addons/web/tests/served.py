"""The live page's server in the test's own event loop, and a source for it."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from dataclasses import replace
from typing import Any

import aiohttp

from addons.web.tests.records import hostile_record
from dljob.core.recording.record import Record
from dljob_web.answering import SourceError
from dljob_web.guarding import BEARER, Guard
from dljob_web.listening import listen, serve
from dljob_web.serving import Server

TOKEN = "correct-horse-battery-staple"  # noqa: S105 - of this test

LIMIT_S = 240

QUESTION = {"job": "<i>b</i>", "most": 1, "policy": "fifo"}


def make_future(*jobs: tuple[Any, ...], policy: str = "foresight") -> dict[str, Any]:
    names = ("job", "gpus", "endsInSeconds", "spans")
    told = [dict(zip(names, each, strict=True)) for each in jobs]
    unknown = [
        each | {"unknownBecause": "it is new"} for each in told if each["endsInSeconds"] is None
    ]
    return {"policy": policy, "jobs": [*(each for each in told if each["endsInSeconds"]), *unknown]}


FUTURES = {
    "notes": ["1 GPU is out of use"],
    "futures": [
        make_future(("a", 0, 90.0, [10.0, 90.0, 2]), ("<i>b</i>", 2, 60.0, [0.0, 60.0, 2])),
        make_future(
            ("a", 1, 80.0, [0.0, 40.0, 1, 40.0, 80.0, 2]),
            ("<i>b</i>", 1, None, [0.0, 100.0, 1]),
            policy="fifo",
        ),
    ],
}


class Told:
    """A source that tells what it was given, and counts how often it was asked."""

    def __init__(self, record: Record | None = None) -> None:
        self.record = record or hostile_record()
        self.problem: SourceError | None = None
        self.asked = 0
        self.jobs: list[Any] = []
        self.nodes: list[Any] = []
        self.withheld = ""
        self.log = ["step 1", "step 2 " + "x" * 500]

    def list_jobs(self) -> list[Any]:
        self.asked += 1
        return self.jobs

    def explain(self, name: str) -> Any:
        for job in self.jobs:
            if job["metadata"]["name"] == name:
                return {"name": name, "message": "waits", "assumptions": [], "job": job}
        raise SourceError(f"{name}: there is no such job", status=404)

    def list_nodes(self) -> list[Any]:
        self.asked += 1
        return self.nodes

    def what_if(self, question: object, *, is_gone: Callable[[], bool]) -> Any:
        if question != QUESTION:
            raise SourceError(f"it is {question!r}", status=400)
        return FUTURES

    def plan(self, documents: list[Any], token: str) -> Any:
        assert token == ""
        effects = [{"job": each["metadata"]["name"], "submitted": True} for each in documents]
        return {"items": effects, "notices": []}

    def read_log(self, name: str, *, node: str, token: str) -> Any:
        assert token == ""
        if self.problem is not None:
            raise self.problem
        nodes = ["n1", "n2"]
        return {"job": name, "node": node or "n1", "nodes": nodes, "lines": self.log, "reason": ""}

    def go_on(self, seconds: float) -> None:
        """Let time pass in which nothing happens."""
        header = self.record.header
        self.record = replace(self.record, header=replace(header, until=header.until + seconds))

    def read_record(self, since: float) -> Record:
        assert since == 0.0
        self.asked += 1
        if self.problem is not None:
            raise self.problem
        return self.record


class Asking:
    """Asks the server; the token and the right Host go without saying."""

    def __init__(self, port: int, session: aiohttp.ClientSession) -> None:
        self.address = f"http://127.0.0.1:{port}/"
        self._session = session

    async def __call__(self, path: str, **headers: str) -> "Answer":
        given = {"Authorization": f"{BEARER}{TOKEN}", **headers}
        # An empty header is one that is not sent.
        given = {name.replace("_", "-"): text for name, text in given.items() if text}
        async with self._session.get(f"{self.address}{path}", headers=given) as answer:
            return Answer(answer.status, answer.headers, await answer.text())

    async def post(self, path: str, document: Any) -> "Answer":
        return await self.send(path, json.dumps(document).encode())

    async def send(self, path: str, body: bytes) -> "Answer":
        headers = {"Authorization": f"{BEARER}{TOKEN}"}
        async with self._session.post(
            f"{self.address}{path}", headers=headers, data=body
        ) as answer:
            return Answer(answer.status, answer.headers, await answer.text())


class Answer:
    """A response of the server."""

    def __init__(self, status: int, headers: Mapping[str, str], text: str) -> None:
        self.status = status
        self.headers = headers
        self.text = text

    @property
    def json(self) -> Any:
        return json.loads(self.text)


@contextlib.asynccontextmanager
async def served(
    source: Any,
    *,
    loopback: bool = True,
    names: Collection[str] = (),
    every_s: float = 0.0,
) -> AsyncIterator[Asking]:
    """Serve a source on a free port of the loopback."""
    with listen("127.0.0.1", 0) as door:
        ended = asyncio.Event()
        server = Server(source, every_s=every_s, present_s=every_s)
        application = server.application(Guard(TOKEN, loopback=loopback, names=names))
        running = asyncio.create_task(serve(application, door, until=ended.wait))
        timeout = aiohttp.ClientTimeout(LIMIT_S)
        try:
            async with aiohttp.ClientSession(timeout=timeout) as session:
                yield Asking(door.getsockname()[1], session)
        finally:
            ended.set()
            await asyncio.wait_for(running, LIMIT_S)
