"""
The jobs of one machine, over HTTP: looked at, submitted, changed, cancelled, explained.

What changes something goes through the list of jobs and wakes the controller; nothing is decided
here. All of it runs on the controller's event loop, so that nobody else writes at the same time.
"""

import asyncio
import math
import posixpath
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from aiohttp import web

from dlcontrol.acting.sidecar_options import has_own_folder
from dlcontrol.deciding import queueing
from dlcontrol.judging import checkpoints
from dlcontrol.reporting import previewing
from dlcontrol.situation.ports import Entry, PodKey
from dlcore.documents import jobfile
from dlcore.model import Job, JobId, NodeName, Phase
from dlcore.problems import Problem
from dllocal import environments
from dllocal.api import (
    labels,
    leftovers,
    showing,
    submissions,
    turns,
)
from dllocal.api.access import Access
from dllocal.api.first_look import wait_for_scene
from dllocal.api.refusals import Complaint, Refused
from dllocal.api.showing import Json
from dllocal.api.submissions import (
    Submission,
    as_written,
    parse,
    read_body,
    read_documents,
    read_environment,
)
from dllocal.backstage import Backstage, Present
from dllocal.containers import engines, running
from dllocal.containers.trying import Trials
from dllocal.environments import Origin, Submitter
from dllocal.folders import older_parts
from dllocal.pods import trainers

LONGEST_WAIT_S = 60.0
EVER_S = 1e12
"""Longer ago than anything was written."""
LOOK_S = 1.0
"""How often it is looked for whoever watches how far jobs are."""
MOST_HISTORY = 1000
FILES_S = 2.0
"""So long is waited for the file system that checkpoints are on."""


class JobsApi:
    """Everything under ``/v1/jobs``."""

    def __init__(self, backstage: Backstage, present: Present) -> None:
        self._stage = backstage
        self._registry = backstage.registry
        self._access = Access(backstage.registry, shared=backstage.shared)
        self._present = present
        self._clock = backstage.clock
        self._turns = turns.Turns(present, backstage.policy)
        self._trials = Trials(backstage.folders.root, sees_gpus=not backstage.virtual_gpus)

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/v1/jobs", self.list_jobs),
            web.post("/v1/jobs", self.create),
            web.get("/v1/jobs/{name}", self.show),
            web.put("/v1/jobs/{name}", self.change),
            web.delete("/v1/jobs/{name}", self.cancel),
            web.get("/v1/jobs/{name}/why", self.explain),
            web.get("/v1/jobs/{name}/history", self.tell_history),
            web.get("/v1/jobs/{name}/logs", self.name_logs),
            web.get("/v1/jobs/{name}/surroundings", self.tell_surroundings),
            web.post("/v1/plan", self.plan),
        ]

    # --- looking

    async def list_jobs(self, request: web.Request) -> web.Response:
        """List all jobs; with ``watch=VERSION`` wait for what is newer, and list that."""
        try:
            selector = labels.parse(request.query.get("selector", ""))
        except labels.WrongSelector as error:
            raise Refused(400, str(error)) from error
        if "watch" in request.query:
            return await self._watch(request, selector)
        await self._turns.renew()
        items = self._listed(request, selector, self._registry.entries.values())
        return web.json_response(showing.list_document(self._version(), items))

    async def _watch(self, request: web.Request, selector: labels.Selector) -> web.Response:
        changes = self._registry.changes
        epoch, _, text = request.query["watch"].partition(".")
        version = int(text) if text.isdecimal() and len(text) < 19 else -1
        known = epoch == str(self._registry.epoch) and changes.knows(version)
        if known:
            await self._wait(version, read_seconds(request, 30.0))
        changed, removed = changes.since(version if known else 0)
        entries = self._registry.entries
        ordered = sorted((entries[job] for job in changed), key=lambda entry: entry.order)
        items = self._listed(request, selector, ordered)
        answer = showing.list_document(self._version(), items)
        # Whoever was away for too long has to drop what it knows.
        return web.json_response({**answer, "removed": removed, "complete": not known})

    async def _wait(self, version: int, seconds: float) -> None:
        """Return when there is something newer, or the time is over."""
        changes, until = self._registry.changes, time.monotonic() + seconds
        while changes.version <= version and (left := until - time.monotonic()) > 0:
            # How far jobs are is not written each time, so that nobody tells of it.
            await changes.wait(version, min(LOOK_S, left))
            self._present.look()

    async def show(self, request: web.Request) -> web.Response:
        """Show one job."""
        await self._turns.renew()
        entry = self._find(request)
        is_whole = self._access.may_see(request)(entry.job.id)
        return web.json_response(self._document(entry, is_whole=is_whole))

    def _listed(
        self, request: web.Request, selector: labels.Selector, entries: Iterable[Entry]
    ) -> list[Json]:
        """Show jobs, those of others without their labels and all else that is not for all."""
        may_see = self._access.may_see(request)
        seen = [(entry, may_see(entry.job.id)) for entry in entries]
        return [
            self._document(entry, is_whole=is_whole)
            for entry, is_whole in seen
            if selector.selects(entry.job.labels if is_whole else {})
        ]

    async def explain(self, request: web.Request) -> web.Response:
        """Say what a job does now and why, with the numbers of this moment."""
        await self._turns.renew(queueing.LONGEST_S)
        entry = self._find(request)
        sentence = entry.status.message or "was submitted just now, and nothing is decided yet"
        seen = self._present.see()
        assumptions: tuple[str, ...] = ()
        if seen is not None and entry.job.id in seen[0].entries:
            sentence = seen[2].sentence(seen[0].entries[entry.job.id])
            assumptions = seen[2].assumptions(entry.job.id)
        answer = {"message": sentence, "assumptions": assumptions, "job": self._document(entry)}
        return web.json_response({"name": entry.job.id, **answer})

    async def tell_history(self, request: web.Request) -> web.Response:
        """List what was decided about a job and what happened to it, oldest first."""
        job = JobId(request.match_info["name"])
        limit = min(MOST_HISTORY, int(read_number(request, "limit", 100.0)))
        entries = await asyncio.to_thread(self._stage.history, job, max(1, limit))
        if not entries:
            self._find(request)
        items = [showing.history_document(entry) for entry in reversed(entries)]
        return web.json_response({"items": items})

    async def name_logs(self, request: web.Request) -> web.Response:
        """Say in which files the output of a job is; with ``since=SECONDS`` also where that begins."""
        entry = self._find(request)
        logs = self._stage.folders.training_logs(entry.job.id)
        at = self._clock() - read_number(request, "since", EVER_S)
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
        begin = self._stage.log_times.find(path, at)
        return {} if begin is None else {"begin": begin._asdict()}

    async def tell_surroundings(self, request: web.Request) -> web.Response:
        """Say in what surroundings the processes of a job run on each of its nodes."""
        entry = self._find(request)
        placement, seen = entry.status.placement, self._present.see()
        if entry.problem:
            raise Refused(409, f"{entry.job.id}: {entry.problem}")
        if placement is None or seen is None:
            phase = entry.status.phase.value
            raise Refused(
                409, f"{entry.job.id} has no GPUs now ({phase}); try again when it is Running"
            )
        trainer = trainers.trainer_of(
            entry.job,
            entry.document,
            self._stage.folders.checkpoints(entry.job.id),
            variables=environments.of_job(entry.job, self._registry.origin(entry.job.id)),
        )
        nodes = seen[0].nodes
        items = [
            {
                "node": part.node,
                "folder": trainer.folder,
                "user": _user_of(self._registry.origin(entry.job.id).submitter),
                **self._container_of(entry, part.node),
                "environment": {
                    **trainer.environment,
                    **trainers.visible_gpus(nodes[part.node], part.gpus),
                },
            }
            for part in placement.slices
            if part.node in nodes
        ]
        return web.json_response({"items": items})

    def _container_of(self, entry: Entry, node: str) -> Json:
        """Say which container of a node the processes of a job run in, where they run in one."""
        if entry.job.container is None:
            return {}
        serial = next(each.serial for each in entry.status.pods if each.node == node)
        socket = self._stage.folders.pod_socket(PodKey(entry.job.id, NodeName(node)), serial)
        origin = self._registry.origin(entry.job.id)
        container = {
            "engine": running.engine_of(entry.job, origin),
            "name": running.name_of(entry.job, socket),
            "client": engines.client_of(origin.variables),
        }
        return {"container": container}

    # --- changing

    async def create(self, request: web.Request) -> web.Response:
        """Take in one job or several, all or none; with ``dryRun`` only say whether that could be."""
        taken_in = await self._check(request)
        notices = await self._notices(taken_in, request)
        if "dryRun" in request.query:
            items = [each.document for each in taken_in]
            return web.json_response(
                {**showing.list_document(self._version(), items), "notices": notices}
            )
        origin = Origin.of(self._access.caller(request), await read_environment(request))
        self._insist_on_few(origin.submitter, len(taken_in))
        # Meanwhile others may have taken the names.
        taken = [
            Complaint(problem, number)
            for number, each in enumerate(taken_in)
            for problem in self._taken(each.job.id, set())
        ]
        if taken:
            raise Refused.because_of(taken)
        documents = [each.document for each in taken_in]
        entries = self._registry.submit_all(documents, self._clock(), origin=origin)
        self._stage.wake()
        items = [self._document(entry) for entry in entries]
        answer = {**showing.list_document(self._version(), items), "notices": notices}
        return web.json_response(answer, status=201)

    def _insist_on_few(self, submitter: Submitter, more: int) -> None:
        """Refuse a user of a shared server more jobs than one may have there."""
        if not self._stage.shared or submitter.uid == 0:
            return
        most = self._stage.user_limits.most_jobs
        there = sum(
            not entry.status.is_final and self._registry.origin(job).submitter.uid == submitter.uid
            for job, entry in self._registry.entries.items()
        )
        if there + more > most:
            raise Refused(
                429,
                f"{submitter.user} has {there} jobs that have not ended, and {most} is the most for one"
                " user here; cancel some, or submit these when others have ended",
            )

    async def change(self, request: web.Request) -> web.Response:
        """Give a job another spec, as far as it may change; with ``dryRun`` only say whether it may."""
        document = await read_body(request)
        # A body may take long. From here to the change nothing else happens, so that the entry stays true.
        entry = self._find(request)
        # The change of a job must not make another user's of it.
        if isinstance(document.get("metadata"), dict):
            document["metadata"].update(_place_of(entry))
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
            raise Refused.because_of([Complaint(problem) for problem in problems])
        known = document["metadata"].get("generation", entry.spec_generation)
        if known != entry.spec_generation:
            raise Refused(
                409,
                f"{entry.job.id} was changed by another command meanwhile; read it and try again",
            )
        if entry.cancelled:
            raise Refused(
                409, f"{entry.job.id} is being cancelled; submit it again when it is gone"
            )
        if "dryRun" in request.query:
            return web.json_response(self._document(entry))
        changed = self._registry.change(entry, as_written(document))
        self._stage.wake()
        return web.json_response(self._document(changed))

    async def cancel(self, request: web.Request) -> web.Response:
        """
        End a job and forget it, and say what becomes of its checkpoints.

        Its own folder of them is removed, unless ``keepCheckpoints`` is asked for or the job is Completed: what
        that has trained is removed by ``removeCheckpoints`` alone.
        """
        entry = self._find(request)
        is_done = entry.status.phase is Phase.COMPLETED
        keeps = _is_asked(request, "keepCheckpoints") or (
            is_done and not _is_asked(request, "removeCheckpoints")
        )
        self._registry.cancel(entry.job.id, keep_checkpoints=keeps)
        self._stage.wake()
        fate = self._fate_of_checkpoints(entry.job)
        document = {
            **self._document(self._find(request)),
            **({"checkpoints": fate} if fate else {}),
        }
        return web.json_response(document, status=202)

    def _fate_of_checkpoints(self, job: Job) -> Json:
        """Say where the checkpoints of a cancelled job are, and whether they stay; empty without any."""
        if not has_own_folder(job):
            return {"path": job.checkpoint.path, "kept": True}
        folder = self._stage.folders.checkpoints(job.id)
        if not folder.is_dir():
            return {}
        return {"path": str(folder), "kept": self._registry.keeps_checkpoints(job.id)}

    async def plan(self, request: web.Request) -> web.Response:
        """Say what would be decided now if these jobs were submitted, and at whose expense."""
        taken_in = await self._check(request)
        scene, before, _ = await wait_for_scene(self._present)
        after = self._stage.snapshot(previewing.joined(scene, [each.job for each in taken_in]))
        # Another thread, because with thousands of jobs it takes long enough to be felt.
        effects = await asyncio.to_thread(previewing.preview, before, after, self._stage.policy)
        coming = await asyncio.to_thread(queueing.foresee_in_time, after, self._stage.policy)
        notices = await self._notices(taken_in, request)
        may_see = self._access.may_see(request)
        items = [
            showing.effect_document(
                effect,
                coming.get(effect.job),
                after.now,
                is_whole=effect.is_new or may_see(effect.job),
            )
            for effect in effects
        ]
        return web.json_response({"items": items, "notices": notices})

    # --- what they share

    async def _read_claimed(self, request: web.Request) -> list[Json]:
        """Read documents, as jobs of the user who asks."""
        documents = await read_documents(request)
        self._access.claim(request, documents)
        return documents

    def _find(self, request: web.Request) -> Entry:
        name = JobId(request.match_info["name"])
        entry = self._registry.entries.get(name)
        if entry is None:
            raise Refused(404, f"{name}: there is no such job; dljob get lists the jobs")
        return entry

    def _version(self) -> str:
        return f"{self._registry.epoch}.{self._registry.changes.version}"

    def _document(self, entry: Entry, *, is_whole: bool = True) -> Json:
        job = entry.job.id
        seen = self._present.see()
        document = showing.job_document(
            self._present.renewed(entry),
            version=f"{self._registry.epoch}.{self._registry.changes.version_of(job)}",
            now=self._clock(),
            outlook=seen[2] if seen is not None else None,
            environment=self._environment(entry) if is_whole else {},
            queue=self._turns.document(job) if entry.status.placement is None else None,
        )
        if is_whole:
            return document
        return showing.outline(document, self._registry.origin(job).submitter.user)

    def _environment(self, entry: Entry) -> environments.Variables:
        # Root must not look at files for a user who may not, and needs none to show a job.
        looks = not self._stage.shared
        return environments.of_job(entry.job, self._registry.origin(entry.job.id), looks=looks)

    async def _check(self, request: web.Request) -> list[Submission]:
        """Read the documents of a request, and refuse all of them for whatever is wrong with any."""
        documents = await self._read_claimed(request)
        recorded = await read_environment(request)
        origin = Origin.of(self._access.caller(request), recorded)
        read = await submissions.read(documents, origin, self._trials, looks=not self._stage.shared)
        names: set[JobId] = set()
        complaints = [*read.complaints]
        for number, each in read.good:
            complaints += [
                Complaint(problem, number) for problem in self._taken(each.job.id, names)
            ]
            names.add(each.job.id)
        if complaints:
            raise Refused.because_of(sorted(complaints, key=lambda each: each.document))
        return [each for _, each in read.good]

    async def _notices(self, taken_in: Sequence[Submission], request: web.Request) -> list[str]:
        """Say what has no effect here, whose checkpoints are overwritten, and which are there; once."""
        notices = [
            notice for each in taken_in for notice in trainers.notices_here(each.job, each.document)
        ]
        notices += filter(None, (checkpoints.notice_for(each.job) for each in taken_in))
        may_see = self._access.may_see(request)
        living = [each for each in self._registry.entries.values() if may_see(each.job.id)]
        owners = {
            posixpath.normpath(entry.job.checkpoint.path): entry.job.id
            for entry in living
            if not has_own_folder(entry.job) and not entry.status.is_final
        }
        for each in taken_in:
            if has_own_folder(each.job):
                continue
            path = posixpath.normpath(each.job.checkpoint.path)
            other = owners.setdefault(path, each.job.id)
            if other != each.job.id:
                notices.append(
                    f"{each.job.id} and {other} have one checkpoint.path ({path}) and will overwrite"
                    " each other's; give each a folder of its own"
                )
        notices += await self._found_checkpoints([each.job for each in taken_in])
        return list(dict.fromkeys(notices))

    async def _found_checkpoints(self, jobs: Sequence[Job]) -> list[str]:
        """Say what former runs have left where these jobs save themselves."""
        if self._stage.shared:
            # Root must not look into a folder for a user who may not.
            jobs = [job for job in jobs if has_own_folder(job)]
        folders = [
            self._stage.folders.checkpoints(job.id)
            if has_own_folder(job)
            else Path(job.checkpoint.path)
            for job in jobs
        ]
        # A file system that does not answer must not keep the other requests waiting.
        looks = asyncio.to_thread(lambda: [*map(leftovers.newest_in, folders)])
        try:
            found = await asyncio.wait_for(looks, FILES_S)
        except TimeoutError:
            return []
        return [
            f"{job.id} finds {newest} in {folder}, left by a former run, and continues from it if"
            " its program does; to start from scratch, remove that folder first"
            for job, folder, newest in zip(jobs, folders, found, strict=True)
            if newest
        ]

    def _taken(self, name: JobId, others: set[JobId]) -> list[Problem]:
        path = "metadata.name"
        if name in others:
            remedy = "give every job a name of its own"
            return [Problem(path, name, f'"{name}" is submitted twice', remedy)]
        entry = self._registry.entries.get(name)
        if entry is None:
            return []
        what = "being cancelled" if entry.cancelled else entry.status.phase.value
        remedy = f"choose another name, or remove that one first: dljob cancel {name}"
        return [Problem(path, name, f'"{name}" is a job already ({what})', remedy)]


def _user_of(submitter: Submitter) -> Json:
    return {"uid": submitter.uid, "gid": submitter.gid, "groups": list(submitter.groups)}


def _is_asked(request: web.Request, name: str) -> bool:
    return request.query.get(name, "false") != "false"


def _place_of(entry: Entry) -> dict[str, str]:
    namespace = entry.document.get("metadata", {}).get("namespace")
    return {"namespace": namespace} if namespace else {}


def read_number(request: web.Request, name: str, usual: float) -> float:
    """Read a number of the query."""
    text = request.query.get(name, "")
    try:
        number = float(text) if text else usual
    except ValueError:
        number = math.nan
    if not 0.0 <= number < 1e15:
        raise Refused(400, f'{name}: "{text}" is not a number from 0 upwards; write such as 30')
    return number


def read_seconds(request: web.Request, usual: float) -> float:
    """Read for how long to wait at most, within reason."""
    return min(read_number(request, "seconds", usual), LONGEST_WAIT_S)
