"""
Requests that submit, change and cancel jobs, and that ask about the future.

They change the list of jobs and wake the controller, all on its event loop, so that no other task writes meanwhile.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Final

from aiohttp import web

from dljob.control.deciding import futures
from dljob.control.situation.status_documents import Json
from dljob.core.documents import jobfile
from dljob.core.model import Job, Phase
from dljob.local import environments
from dljob.local.api import showing
from dljob.local.api.access import Access
from dljob.local.api.jobs.intake import Intake, as_written, parse
from dljob.local.api.jobs.job_documents import JobDocuments, find_entry
from dljob.local.api.refusals import Complaint, RefusedError
from dljob.local.api.requests import CALLER, is_asked, is_gone, read_body, wait_for_scene
from dljob.local.files.file_threads import AllBusyError, FileThreads
from dljob.local.folders import Folders
from dljob.local.jobs.registry import Registry
from dljob.local.pods import trainers
from dljob.local.server_parts import LatestScene, ServerParts
from dljob_wire.problems import WrongDocument

log = logging.getLogger(__name__)

CLIENT_IS_GONE: Final = 499
"""No client gets this status; it is that of other servers, in logs."""
PLANS_AT_ONCE: Final = 2
"""The most plans and futures that are made at the same time, because each takes a share of the processor from the controller."""
WITHHELD: Final = "futures are played with all jobs, and of jobs of other users you see only the GPUs; root gets futures from sudo"


class JobsChanging:
    def __init__(
        self, parts: ServerParts, latest: LatestScene, access: Access, *, documents: JobDocuments
    ) -> None:
        self._parts = parts
        self._registry = parts.registry
        self._access = access
        self._latest = latest
        self._clock = parts.clock
        self._documents = documents
        self._intake = Intake(parts, access)
        self._planning: defaultdict[int, asyncio.Semaphore] = defaultdict(
            lambda: asyncio.Semaphore(1)
        )
        """Of each user."""
        self._planners = FileThreads(PLANS_AT_ONCE)

    def routes(self) -> list[web.RouteDef]:
        return [
            web.post("/v1/jobs", self.create),
            web.put("/v1/jobs/{name}", self.change),
            web.delete("/v1/jobs/{name}", self.cancel),
            web.post("/v1/plan", self.plan),
            web.post("/v1/what-if", self.show_futures),
        ]

    async def create(self, request: web.Request) -> web.Response:
        """Submit one job or several, all or none; with ``dryRun`` only check them."""
        is_dry = "dryRun" in request.query
        taken_in = await self._intake.check(request, tries=not is_dry)
        notices = await self._intake.notices(taken_in)
        if is_dry:
            items = [each.document for each in taken_in.items]
        else:
            # No await from here on.
            self._intake.insist_on_places(taken_in)
            entries = self._registry.submit_all(
                taken_in.items, self._clock(), origin=taken_in.origin
            )
            self._parts.wake()
            items = [self._documents.document(entry) for entry in entries]
        answer = {**showing.list_document(self._documents.version(), items), "notices": notices}
        return web.json_response(answer, status=200 if is_dry else 201)

    async def change(self, request: web.Request) -> web.Response:
        """Change the spec of a job; with ``dryRun`` only check the change."""
        document = await read_body(request)
        # After the body, which may take long. There is no await from here to the change.
        entry = find_entry(self._registry, request)
        # A change must not give the job to another user.
        if isinstance(document.get("metadata"), dict):
            namespace = entry.document.get("metadata", {}).get("namespace")
            document["metadata"].update({"namespace": namespace} if namespace else {})
        job = parse(document, 0)
        problems = [
            *jobfile.change_problems(entry.job, job),
            *trainers.problems_here(job),
            *environments.length_problems(job),
        ]
        if not problems:
            recorded = self._registry.origin(entry.job.id).variables
            problems += trainers.starting_problems(job, recorded)
        if problems:
            raise RefusedError.because_of([Complaint(problem) for problem in problems])
        known = document["metadata"].get("generation", entry.spec_generation)
        if known != entry.spec_generation:
            raise RefusedError(
                409,
                f"{entry.job.id} was changed by another command meanwhile; read it and try again",
            )
        if entry.cancelled:
            raise RefusedError(
                409, f"{entry.job.id} is being cancelled; submit it again when it is gone"
            )
        if "dryRun" in request.query:
            return web.json_response(self._documents.document(entry))
        changed = self._registry.change(entry, job=job, document=as_written(document))
        self._parts.wake()
        return web.json_response(self._documents.document(changed))

    async def cancel(self, request: web.Request) -> web.Response:
        """
        Cancel a job, and report what happens to its checkpoints.

        The job's own folder of checkpoints is removed, unless the request has ``keepCheckpoints`` or the job is Completed:
        only ``removeCheckpoints`` removes the result of a training.
        """
        # Without an await, during which the loop could forget the job.
        entry = find_entry(self._registry, request)
        folders = self._parts.folders
        folder = folders.checkpoints(entry.job.id)
        is_own = entry.status.is_final and trainers.has_own_folder(entry.job)
        saved_nothing = is_own and folder.is_dir() and _is_empty(folder)
        is_done = entry.status.phase is Phase.COMPLETED and not saved_nothing
        keeps = is_asked(request, "keepCheckpoints") or (
            is_done and not is_asked(request, "removeCheckpoints")
        )
        self._registry.cancel(entry.job.id, keep_checkpoints=keeps)
        self._parts.wake()
        fate = {} if saved_nothing else _fate_of_checkpoints(self._registry, folders, job=entry.job)
        document = {
            **self._documents.document(find_entry(self._registry, request)),
            **({"checkpoints": fate} if fate else {}),
        }
        return web.json_response(document, status=202)

    async def plan(self, request: web.Request) -> web.Response:
        """Report the decisions that would follow if these jobs were submitted now."""
        return await self._in_turn(request, self._plan)

    async def show_futures(self, request: web.Request) -> web.Response:
        """Play the future of all jobs twice: as it is, and with the difference that the request names."""
        return await self._in_turn(request, self._show_futures)

    async def _in_turn(
        self, request: web.Request, answer: Callable[[web.Request], Awaitable[Json]]
    ) -> web.Response:
        """Answer one question about the future of a user at a time."""
        async with self._planning[request[CALLER].uid]:
            if is_gone(request):
                # The client has left while an earlier plan was made.
                return web.Response(status=CLIENT_IS_GONE)
            try:
                return web.json_response(await answer(request))
            except AllBusyError as error:
                raise RefusedError(
                    503, "plans of other users are being made; ask again in some seconds"
                ) from error
            except futures.PolicyError as error:
                log.warning("%s", error, exc_info=error.__cause__)
                raise RefusedError(409, str(error)) from error

    async def _plan(self, request: web.Request) -> Json:
        taken_in = await self._intake.check(request, tries=False)
        scene, before, _ = await wait_for_scene(self._latest)
        after = self._parts.snapshot(futures.joined(scene, [each.job for each in taken_in.items]))
        # Not in the thread, because requests change the owners of jobs.
        may_see = self._access.may_see(request[CALLER])
        seen = frozenset(job for job in scene.entries if may_see(job))
        # In a thread, because this takes long with thousands of jobs.
        make = partial(
            futures.plan_documents,
            before,
            after,
            policy=self._parts.policy,
            may_see=seen.__contains__,
        )
        items = await self._planners.run(make)
        return {"items": items, "notices": await self._intake.notices(taken_in)}

    async def _show_futures(self, request: web.Request) -> Json:
        if not self._access.sees_all(request[CALLER]):
            raise RefusedError(403, WITHHELD)
        try:
            question = futures.read_question(await read_body(request))
            scene, _, _ = await wait_for_scene(self._latest)
            posed = futures.pose(
                question, scene, snapshot=self._parts.snapshot, policy=self._parts.policy
            )
        except WrongDocument as error:
            raise RefusedError.because_of(list(map(Complaint, error.problems)), 400) from error
        play = partial(futures.show_futures, posed, is_gone=lambda: is_gone(request))
        return await self._planners.run(play)


def _is_empty(folder: Path) -> bool:
    try:
        return not any(folder.iterdir())
    except OSError:
        return False


def _fate_of_checkpoints(registry: Registry, folders: Folders, *, job: Job) -> Json:
    """Return the folder of a cancelled job's checkpoints, and whether it stays; empty without checkpoints."""
    if not trainers.has_own_folder(job):
        return {"path": job.checkpoint.path, "kept": True}
    folder = folders.checkpoints(job.id)
    is_kept = registry.keeps_checkpoints(job.id)
    if not folder.is_dir() or (_is_empty(folder) and not is_kept):
        return {}
    return {"path": str(folder), "kept": is_kept}
