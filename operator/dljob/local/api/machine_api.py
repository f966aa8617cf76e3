"""Requests about the machine: its GPUs, Events, settings, metrics and record."""

import asyncio
import contextlib
import re
import time
from collections import defaultdict
from dataclasses import replace
from typing import Final

from aiohttp import web

from dljob.control.gpus import gpu_table
from dljob.control.situation.status_documents import Json
from dljob.core.model import GpuRef, JobId, NodeName
from dljob.core.recording.narrowing import list_jobs, narrow
from dljob.core.recording.record import Record, encode
from dljob.local.api import showing
from dljob.local.api.access import NAMESPACE, Access
from dljob.local.api.refusals import RefusedError
from dljob.local.api.requests import (
    CALLER,
    GONE_S,
    insist_on_client,
    is_gone,
    read_body,
    read_number,
    read_seconds,
    wait_for_scene,
)
from dljob.local.server_parts import LatestScene, ServerParts
from dljob.store.rows import read_history
from dljob.store.store import StoreError

OWN: Final = (
    "you see your own jobs, and of those of other users only the GPUs that they hold; a GPU is"
    " also idle while only jobs of other users wait"
)

LONGEST_REASON = 500
HELD = re.compile(rf"{NAMESPACE.pattern}|\*")
MOST_EARLIER = 100


class MachineApi:
    def __init__(self, parts: ServerParts, latest: LatestScene, *, access: Access) -> None:
        self._parts = parts
        self._access = access
        self._latest = latest
        self._turn = asyncio.Lock()
        self._turns: defaultdict[int, asyncio.Lock] = defaultdict(asyncio.Lock)
        """By the number of a user."""

    def routes(self) -> list[web.RouteDef]:
        gpu = "/v1/nodes/{node}/gpus/{gpu}/cordon"
        return [
            web.get("/v1/about", self.about),
            web.get("/v1/config", self.config),
            web.get("/v1/events", self.list_events),
            web.get("/v1/nodes", self.list_nodes),
            web.get("/v1/record", self.show_record),
            web.put(gpu, self.cordon),
            web.delete(gpu, self.uncordon),
            web.get("/v1/holds", self.list_holds),
            web.put("/v1/holds/{namespace}", self.hold),
            web.delete("/v1/holds/{namespace}", self.release),
            web.get("/metrics", self.metrics),
        ]

    async def about(self, request: web.Request) -> web.Response:
        """Describe this controller, with the namespace of the user who asks."""
        home = self._access.home(request[CALLER])
        return web.json_response({**self._parts.about(), "home": home})

    async def config(self, _request: web.Request) -> web.Response:
        """List every setting with its origin."""
        items = [showing.setting_document(setting) for setting in self._parts.settings()]
        return web.json_response({"items": items})

    async def metrics(self, _request: web.Request) -> web.Response:
        headers = {"Content-Type": "text/plain; version=0.0.4; charset=utf-8"}
        return web.Response(body=self._parts.metrics(), headers=headers)

    async def list_events(self, request: web.Request) -> web.Response:
        """List the Events after number ``since``, of one job or all; may wait for one."""
        since = int(read_number(request, "since", usual=0.0))
        seconds = read_seconds(request, 0.0)
        events, job = self._parts.events, request.query.get("job")
        name, may_see = JobId(job) if job else None, self._access.may_see(request[CALLER])
        if name is not None and not may_see(name):
            raise RefusedError(
                403, f"{name} is not among your jobs; only its owner and root see its events"
            )
        until = time.monotonic() + seconds
        # Events of other users' jobs must not end the wait, which would reveal them.
        while not any(may_see(each.job) for each in events.since(since, name)):
            left = until - time.monotonic()
            if left <= 0 or is_gone(request):
                break
            # No await since the check above, so that no event is missed.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(GONE_S, left)):
                    await events.wait()
        found = [event for event in events.since(since, name) if may_see(event.job)]
        items = [showing.event_document(event) for event in found]
        if name is not None and not since and not seconds:
            items = [*await self._list_earlier(name), *items]
        return web.json_response({"items": items})

    async def _list_earlier(self, job: JobId) -> list[Json]:
        """List the Events of a job before this controller began."""
        try:
            entries = await asyncio.to_thread(self._parts.history, job, MOST_EARLIER)
        except StoreError:
            return []
        epoch = self._parts.registry.epoch
        earlier = (row for row in reversed(entries) if row.epoch < epoch)
        return [showing.earlier_event_document(line) for _, line in read_history(earlier)]

    async def show_record(self, request: web.Request) -> web.Response:
        """Return the lines of the record since a time, in seconds since the epoch."""
        since = read_number(request, "since", usual=0.0)
        if self._access.sees_all(request[CALLER]):
            record = await self._read_record(since)
            # In a thread, because a long record takes long to encode.
            lines = await asyncio.to_thread(lambda: [*encode(record)])
        else:
            # One thread for all users, so that the controller goes on.
            async with self._turns[request[CALLER].uid], self._turn:
                insist_on_client(request)
                record = await self._read_record(since)
                named = await asyncio.to_thread(list_jobs, record)
                # Not in the thread, because requests change the owners of jobs.
                may_see = self._access.may_see(request[CALLER])
                hidden = frozenset(job for job in named if not may_see(JobId(job)))
                lines = await asyncio.to_thread(lambda: [*encode(narrow(record, hidden, lack=OWN))])
        return web.json_response({"lines": lines})

    async def _read_record(self, since: float) -> Record:
        try:
            return await asyncio.to_thread(self._parts.record, since)
        except StoreError as error:
            raise RefusedError(503, f"the record cannot be read: {error}") from error

    async def list_nodes(self, request: web.Request) -> web.Response:
        """List every GPU with its job, or the reason why it is out of service."""
        scene, snapshot, _ = await wait_for_scene(self._latest)
        may_see = self._access.may_see(request[CALLER])
        rows = (
            # The time of the latest decision about another user's job would count its changes.
            row
            if row.job is None or may_see(row.job)
            else replace(row, worker=None, since=None, reason="")
            for row in gpu_table.gpu_rows(scene, snapshot.cluster)
        )
        return web.json_response({"items": showing.node_documents(rows)})

    async def cordon(self, request: web.Request) -> web.Response:
        """Take a GPU out of service. Its job keeps it until the next change."""
        node, gpu = await self._find(request)
        reason = await _read_reason(request) or "cordoned by hand"
        self._parts.registry.cordon(node, gpu, reason)
        self._parts.wake()
        return web.json_response({"node": node, "gpu": gpu, "reason": reason})

    async def uncordon(self, request: web.Request) -> web.Response:
        """Put a GPU back into service, and forget the faults that were reported."""
        node, gpu = await self._find(request)
        registry = self._parts.registry
        was_cordoned = (node, gpu) in registry.cordons()
        # Do this first, because the file may be locked: the retry must still know whether the GPU
        # had faults.
        registry.cordon(node, gpu, "")
        was = self._parts.reinstate(GpuRef(node, gpu)) or was_cordoned
        self._parts.wake()
        return web.json_response({"node": node, "gpu": gpu, "wasCordoned": was})

    async def list_holds(self, _request: web.Request) -> web.Response:
        """List the namespaces whose jobs are on hold, with the reasons."""
        return web.json_response({"holds": self._parts.registry.holds})

    async def hold(self, request: web.Request) -> web.Response:
        """Decide nothing about the jobs of a namespace, or about all (``*``)."""
        namespace, reason = request.match_info["namespace"], await _read_reason(request)
        if not HELD.fullmatch(namespace):
            raise RefusedError(400, f"{namespace}: is no name of a namespace; * means all jobs")
        self._parts.registry.hold(namespace, reason)
        self._parts.wake()
        return web.json_response({"namespace": namespace, "reason": reason})

    async def release(self, request: web.Request) -> web.Response:
        namespace = request.match_info["namespace"]
        was_held = namespace in self._parts.registry.holds
        self._parts.registry.hold(namespace, None)
        self._parts.wake()
        return web.json_response({"namespace": namespace, "wasHeld": was_held})

    async def _find(self, request: web.Request) -> tuple[NodeName, int]:
        node, text = NodeName(request.match_info["node"]), request.match_info["gpu"]
        scene, _, _ = await wait_for_scene(self._latest)
        nodes = scene.nodes
        if node not in nodes:
            known = ", ".join(nodes) or "none"
            raise RefusedError(404, f"{node}: there is no such node; there are {known}")
        numbers = [str(gpu.index) for gpu in nodes[node].gpus]
        if text not in numbers:
            raise RefusedError(
                404, f"{node}/{text}: there is no such GPU; {node} has {', '.join(numbers)}"
            )
        return node, int(text)


async def _read_reason(request: web.Request) -> str:
    reason = (await read_body(request)).get("reason") or ""
    if not isinstance(reason, str) or len(reason) > LONGEST_REASON:
        raise RefusedError(400, f"reason: is not a string of at most {LONGEST_REASON} characters")
    return reason
