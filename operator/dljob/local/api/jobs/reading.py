"""Requests that read jobs: their documents, reasons, history, logs and surroundings."""

import asyncio
import time
from collections.abc import Mapping

from aiohttp import web

from dljob.control.deciding import futures
from dljob.control.situation.ports import Entry, PodKey
from dljob.control.situation.status_documents import Json
from dljob.core.model import JobId, Node, NodeName, Placement
from dljob.local import environments
from dljob.local.api import labels, showing
from dljob.local.api.access import Access
from dljob.local.api.jobs.expected_turns import ExpectedTurns
from dljob.local.api.jobs.job_documents import JobDocuments, find_entry
from dljob.local.api.refusals import RefusedError
from dljob.local.api.requests import CALLER, GONE_S, TURNS, is_gone, read_number, read_seconds
from dljob.local.containers import engines, running
from dljob.local.files.bounded_checks import NoAnswerError
from dljob.local.folders import older_parts
from dljob.local.pods import trainers
from dljob.local.server_parts import LatestScene, ServerParts
from dljob.store.rows import read_history

EVER_S = 1e12
"""Before any log was written."""
LOOK_S = GONE_S
"""How often a watch reads the progress of jobs."""
MOST_HISTORY = 1000


class JobsReading:
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
        """List all jobs; with ``watch=VERSION`` wait for changes after that version, and list these."""
        try:
            selector = labels.parse(request.query.get("selector", ""))
        except labels.SelectorError as error:
            raise RefusedError(400, str(error)) from error
        if "watch" in request.query:
            return await self._watch(request, selector)
        await self._turns.renew()
        async with request.app[TURNS].take(request):
            # Before the list, so that a watch shows what changes while it is made.
            version, entries = self._documents.version(), self._registry.entries.values()
            items = await self._documents.listed(request, selector, entries=entries)
            return web.json_response(showing.list_document(version, items))

    async def _watch(self, request: web.Request, selector: labels.Selector) -> web.Response:
        changes = self._registry.changes
        # Each server counts versions from its start.
        epoch, _, text = request.query["watch"].partition(".")
        version = int(text) if text.isdecimal() and len(text) < 19 else -1
        known = epoch == str(self._registry.epoch) and changes.knows(version)
        if known:
            await self._wait(request, version, seconds=read_seconds(request, 30.0))
        async with request.app[TURNS].take(request):
            # Of one moment: what changes while the list is made has a later version.
            changed, removed = changes.since(version if known else 0)
            entries, now = self._registry.entries, self._documents.version()
            ordered = sorted((entries[job] for job in changed), key=lambda entry: entry.order)
            items = await self._documents.listed(request, selector, entries=ordered)
            answer = showing.list_document(now, items)
            # `complete`: the client has to drop all jobs that it knows.
            return web.json_response({**answer, "removed": removed, "complete": not known})

    async def _wait(self, request: web.Request, version: int, *, seconds: float) -> None:
        """Return after a change, at the end of the time, or when the client has hung up."""
        changes, until = self._registry.changes, time.monotonic() + seconds
        while changes.version <= version and (left := until - time.monotonic()) > 0:
            # A client that hangs up and asks again would otherwise accumulate handlers.
            if is_gone(request):
                return
            # Progress alone is not always written, and then is no change of the list.
            await changes.wait(version, min(LOOK_S, left))
            self._latest.note_progress()

    async def show(self, request: web.Request) -> web.Response:
        await self._turns.renew()
        entry = find_entry(self._registry, request)
        is_whole = self._access.may_see(request[CALLER])(entry.job.id)
        return web.json_response(self._documents.document(entry, is_whole=is_whole))

    async def explain(self, request: web.Request) -> web.Response:
        """Explain what a job does now."""
        await self._turns.renew(futures.LONGEST_S)
        entry = find_entry(self._registry, request)
        sentence = entry.status.message or "was submitted just now, and nothing is decided yet"
        seen = self._latest.see()
        assumptions: tuple[str, ...] = ()
        # The scene of the last cycle may lack a new job.
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
        """List the history of a job, oldest first, without that of former jobs of its name."""
        job = JobId(request.match_info["name"])
        limit = min(MOST_HISTORY, int(read_number(request, "limit", usual=100.0)))
        # In a thread, because the store may be a slow server.
        entries = await asyncio.to_thread(self._parts.history, job, max(1, limit))
        # The history of a job that is gone outlives it.
        present = (
            self._registry.entries.get(job) if entries else find_entry(self._registry, request)
        )
        since = 0.0 if present is None else present.status.submitted_at
        items = [
            showing.history_document(line)
            for _, line in read_history(reversed(entries))
            if line.at >= since
        ]
        return web.json_response({"items": items})

    async def list_logs(self, request: web.Request) -> web.Response:
        """List the log files of a job; with ``since=SECONDS`` also where output since then begins."""
        entry = find_entry(self._registry, request)
        # Without an await, because a rotation in between would renumber the parts.
        logs = self._parts.folders.training_logs(entry.job.id)
        find = self._parts.log_times.find
        at = self._parts.log_times.clock() - read_number(request, "since", usual=EVER_S)
        items = [
            {
                "node": node,
                "path": str(path),
                "parts": [*map(str, older_parts(path))],
                **({"begin": begin._asdict()} if (begin := find(path, at)) is not None else {}),
            }
            for node, path in logs.items()
        ]
        return web.json_response({"items": items, "ended": entry.status.is_final})

    async def show_surroundings(self, request: web.Request) -> web.Response:
        """Describe the surroundings of a job's processes on each node."""
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
            items = _list_surroundings(self._parts, entry, placement=placement, nodes=seen[0].nodes)
        except NoAnswerError as error:
            raise RefusedError(
                503, f"{error}; look for a file system that hangs, or try again later"
            ) from error
        return web.json_response({"items": items})


def _list_surroundings(
    stage: ServerParts, entry: Entry, *, placement: Placement, nodes: Mapping[NodeName, Node]
) -> list[Json]:
    """Return an item for each node; raises :class:`~dljob.local.files.bounded_checks.NoAnswerError`."""
    origin = stage.registry.origin(entry.job.id)
    user = origin.submitter
    trainer = trainers.trainer_of(
        entry.job,
        entry.document,
        checkpoints=stage.folders.checkpoints(entry.job.id),
        variables=environments.of_job(entry.job, origin),
    )
    return [
        {
            "node": part.node,
            "folder": trainer.folder,
            "user": {"uid": user.uid, "gid": user.gid, "groups": list(user.groups)},
            **_container_of(stage, entry, node=part.node),
            "environment": {
                **trainer.environment,
                **trainers.visible_gpus(nodes[part.node], part.gpus),
            },
        }
        for part in placement.slices
        if part.node in nodes
    ]


def _container_of(stage: ServerParts, entry: Entry, *, node: str) -> Json:
    if entry.job.container is None:
        return {}
    serial = next(each.serial for each in entry.status.pods if each.node == node)
    socket = stage.folders.pod_socket(PodKey(entry.job.id, NodeName(node)), serial)
    origin = stage.registry.origin(entry.job.id)
    container = {
        "engine": running.engine_of(entry.job, origin),
        "name": running.name_of(entry.job, socket),
        "client": engines.client_of(origin.variables),
    }
    return {"container": container}
