"""Requests that only read about jobs: their documents, reasons, history, logs and surroundings."""

import asyncio
import time
from pathlib import Path

from aiohttp import web

from dlcontrol.deciding import futures
from dlcore.model import JobId
from dllocal.api import (
    labels,
    showing,
)
from dllocal.api.access import Access
from dllocal.api.jobs.expected_turns import ExpectedTurns
from dllocal.api.jobs.job_documents import JobDocuments, find_entry
from dllocal.api.jobs.surroundings import list_surroundings
from dllocal.api.queries import GONE_S, is_gone, read_number, read_seconds
from dllocal.api.refusals import RefusedError
from dllocal.api.showing import Json
from dllocal.files.bounded_checks import NoAnswerError
from dllocal.folders import older_parts
from dllocal.server_parts import LatestScene, ServerParts

EVER_S = 1e12
"""Longer ago than anything was written."""
LOOK_S = GONE_S
"""How often a watch of the progress of jobs reads it."""
MOST_HISTORY = 1000


class JobsReading:
    """The requests about jobs that change nothing."""

    def __init__(
        self,
        parts: ServerParts,
        latest: LatestScene,
        access: Access,
        *,
        documents: JobDocuments,
        waiting: ExpectedTurns,
    ) -> None:
        self._parts = parts
        self._registry = parts.registry
        self._access = access
        self._latest = latest
        self._documents = documents
        self._turns = waiting

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/v1/jobs", self.list_jobs),
            web.get("/v1/jobs/{name}", self.show),
            web.get("/v1/jobs/{name}/why", self.explain),
            web.get("/v1/jobs/{name}/history", self.list_history),
            web.get("/v1/jobs/{name}/logs", self.list_logs),
            web.get("/v1/jobs/{name}/surroundings", self.show_surroundings),
        ]

    async def list_jobs(self, request: web.Request) -> web.Response:
        """List all jobs; with ``watch=VERSION`` wait for what is newer, and list that."""
        try:
            selector = labels.parse(request.query.get("selector", ""))
        except labels.SelectorError as error:
            raise RefusedError(400, str(error)) from error
        if "watch" in request.query:
            return await self._watch(request, selector)
        await self._turns.renew()
        items = self._documents.listed(request, selector, self._registry.entries.values())
        return web.json_response(showing.list_document(self._documents.version(), items))

    async def _watch(self, request: web.Request, selector: labels.Selector) -> web.Response:
        changes = self._registry.changes
        # Versions count from the start of a server, so that they mean nothing to another one.
        epoch, _, text = request.query["watch"].partition(".")
        version = int(text) if text.isdecimal() and len(text) < 19 else -1
        known = epoch == str(self._registry.epoch) and changes.knows(version)
        if known:
            await self._wait(request, version, read_seconds(request, 30.0))
        # Nothing is awaited from here on, so that each of these jobs is still in the list.
        changed, removed = changes.since(version if known else 0)
        entries = self._registry.entries
        ordered = sorted((entries[job] for job in changed), key=lambda entry: entry.order)
        items = self._documents.listed(request, selector, ordered)
        answer = showing.list_document(self._documents.version(), items)
        # A client that was away for too long has to drop what it knows.
        return web.json_response({**answer, "removed": removed, "complete": not known})

    async def _wait(self, request: web.Request, version: int, seconds: float) -> None:
        """Return when there is something newer, the time is over, or the client has hung up."""
        changes, until = self._registry.changes, time.monotonic() + seconds
        while changes.version <= version and (left := until - time.monotonic()) > 0:
            # A client that hangs up and asks again would gather handlers beyond its connections.
            if is_gone(request):
                return
            # Progress alone is not written each time, so it causes no change to wait for.
            await changes.wait(version, min(LOOK_S, left))
            self._latest.note_progress()

    async def show(self, request: web.Request) -> web.Response:
        """Show one job."""
        await self._turns.renew()
        entry = find_entry(self._registry, request)
        is_whole = self._access.may_see(request)(entry.job.id)
        return web.json_response(self._documents.document(entry, is_whole=is_whole))

    async def explain(self, request: web.Request) -> web.Response:
        """Say what a job does now and why, with the numbers of this moment."""
        await self._turns.renew(futures.LONGEST_S)
        entry = find_entry(self._registry, request)
        sentence = entry.status.message or "was submitted just now, and nothing is decided yet"
        seen = self._latest.see()
        assumptions: tuple[str, ...] = ()
        # The scene is that of the last cycle, and may not know a job that the list has already.
        if seen is not None and entry.job.id in seen[0].entries:
            sentence = seen[2].sentence(seen[0].entries[entry.job.id])
            assumptions = seen[2].assumptions(entry.job.id)
        answer = {
            "message": sentence,
            "assumptions": assumptions,
            "job": self._documents.document(entry),
        }
        return web.json_response({"name": entry.job.id, **answer})

    async def list_history(self, request: web.Request) -> web.Response:
        """List what was decided about a job and what happened to it, oldest first."""
        job = JobId(request.match_info["name"])
        limit = min(MOST_HISTORY, int(read_number(request, "limit", usual=100.0)))
        # The store may be a server that is slow; other requests go on meanwhile.
        entries = await asyncio.to_thread(self._parts.history, job, max(1, limit))
        if not entries:
            find_entry(self._registry, request)
        items = [showing.history_document(entry) for entry in reversed(entries)]
        return web.json_response({"items": items})

    async def list_logs(self, request: web.Request) -> web.Response:
        """Say in which files the output of a job is; with ``since=SECONDS`` also where that begins."""
        entry = find_entry(self._registry, request)
        # Parts and beginnings are read without an await, because a log that is turned over
        # in between would shift all parts by one. The cut happens on this event loop.
        logs = self._parts.folders.training_logs(entry.job.id)
        at = self._parts.log_times.clock() - read_number(request, "since", usual=EVER_S)
        items = [
            {
                "node": node,
                "path": str(path),
                "parts": [*map(str, older_parts(path))],
                **self._begin_of(path, at),
            }
            for node, path in logs.items()
        ]
        return web.json_response({"items": items, "ended": entry.status.is_final})

    def _begin_of(self, path: Path, at: float) -> Json:
        begin = self._parts.log_times.find(path, at)
        return {} if begin is None else {"begin": begin._asdict()}

    async def show_surroundings(self, request: web.Request) -> web.Response:
        """Say in what surroundings the processes of a job run on each of its nodes."""
        entry = find_entry(self._registry, request)
        placement, seen = entry.status.placement, self._latest.see()
        if entry.problem:
            raise RefusedError(409, f"{entry.job.id}: {entry.problem}")
        if placement is None or seen is None:
            phase = entry.status.phase.value
            raise RefusedError(
                409, f"{entry.job.id} has no GPUs now ({phase}); try again when it is Running"
            )
        try:
            items = list_surroundings(self._parts, entry, placement, nodes=seen[0].nodes)
        except NoAnswerError as error:
            raise RefusedError(
                503, f"{error}; look for a file system that hangs, or try again later"
            ) from error
        return web.json_response({"items": items})
