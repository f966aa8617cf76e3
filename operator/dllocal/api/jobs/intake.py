"""
The checks that new jobs have to pass before they are taken in, and the notices that their user gets.

A request is taken in as a whole or not at all.
"""

import asyncio
import posixpath
import time
from collections.abc import Sequence
from pathlib import Path

from aiohttp import web

from dlcontrol.acting.sidecar_options import has_own_folder
from dlcontrol.judging import checkpoints
from dlcore.model import Job, JobId
from dlcore.problems import Problem
from dllocal.api import submissions
from dllocal.api.access import Access
from dllocal.api.refusals import Complaint, RefusedError
from dllocal.api.showing import Json
from dllocal.api.submissions import Submission, read_documents, read_environment
from dllocal.containers.trying import Trials
from dllocal.environments import Origin, Submitter
from dllocal.files.file_threads import AllBusyError, FileThreads
from dllocal.pods import trainers
from dllocal.server_parts import ServerParts

FILES_S = 2.0
"""The time limit for the file system that checkpoints are on."""


class Intake:
    """Checks the jobs that are submitted to one server."""

    def __init__(self, parts: ServerParts, access: Access) -> None:
        self._parts = parts
        self._registry = parts.registry
        self._access = access
        self._trials = Trials(parts.folders.root, sees_gpus=not parts.virtual_gpus)
        self._threads = FileThreads()

    async def check(self, request: web.Request) -> list[Submission]:
        """Read the documents of a request, and refuse all of them if any is wrong."""
        documents = await self._read_claimed(request)
        recorded = await read_environment(request)
        origin = Origin.of(self._access.caller(request), recorded)
        read = await submissions.read(
            documents,
            origin,
            self._trials,
            looks=not self._parts.shared,
            threads=self._threads,
        )
        # The list of jobs belongs to the event loop, so that names are compared here and not in the thread.
        names: set[JobId] = set()
        complaints = [*read.complaints]
        for number, each in read.good:
            complaints += [
                Complaint(problem, number) for problem in self._taken(each.job.id, names)
            ]
            names.add(each.job.id)
        if complaints:
            raise RefusedError.because_of(sorted(complaints, key=lambda each: each.document))
        return [each for _, each in read.good]

    def insist_on_few(self, submitter: Submitter, more: int) -> None:
        """Refuse a user of a shared server more jobs than one may have there."""
        if not self._parts.shared or submitter.uid == 0:
            return
        most = self._parts.user_limits.most_jobs
        there = sum(
            not entry.status.is_final and self._registry.origin(job).submitter.uid == submitter.uid
            for job, entry in self._registry.entries.items()
        )
        if there + more > most:
            raise RefusedError(
                429,
                f"{submitter.user} has {there} jobs that have not ended, and {most} is the most for one"
                " user here; cancel some, or submit these when others have ended",
            )

    async def notices(self, taken_in: Sequence[Submission], request: web.Request) -> list[str]:
        """Say what has no effect here, whose checkpoints are overwritten, and which exist already; once."""
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
        if self._parts.shared:
            # Root must not look into a folder for a user who may not.
            jobs = [job for job in jobs if has_own_folder(job)]
        folders = [
            self._parts.folders.checkpoints(job.id)
            if has_own_folder(job)
            else Path(job.checkpoint.path)
            for job in jobs
        ]
        try:
            # A file system that does not answer must not keep the other requests waiting.
            async with asyncio.timeout(FILES_S):
                found = await self._threads.run(lambda: [*map(newest_in, folders)])
        except (TimeoutError, AllBusyError):
            return []
        return [
            f"{job.id} finds {newest} in {folder}, left by a former run, and continues from it if"
            " its program does; to start from scratch, remove that folder first"
            for job, folder, newest in zip(jobs, folders, found, strict=True)
            if newest
        ]

    def insist_on_free_names(self, taken_in: Sequence[Submission]) -> None:
        """Refuse names that other jobs have taken while these were checked."""
        taken = [
            Complaint(problem, number)
            for number, each in enumerate(taken_in)
            for problem in self._taken(each.job.id, set())
        ]
        if taken:
            raise RefusedError.because_of(taken)

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

    async def _read_claimed(self, request: web.Request) -> list[Json]:
        """Read documents, as jobs of the user who asks."""
        documents = await read_documents(request)
        self._access.claim(request, documents)
        return documents


def newest_in(folder: Path) -> str:
    """Name what was changed last in a folder and when; empty where there is nothing."""
    # Hidden names are the SideCar's own notes and what it has set aside.
    found = [(_changed(path), path.name) for path in _list(folder) if path.name[:1] != "."]
    if not found:
        return ""
    changed, name = max(found)
    return f"{name} ({time.strftime('%Y-%m-%d %H:%M', time.localtime(changed))})"


def _list(folder: Path) -> list[Path]:
    try:
        return [*folder.iterdir()]
    except OSError:
        return []


def _changed(path: Path) -> float:
    try:
        return path.lstat().st_mtime
    except OSError:
        return 0.0
