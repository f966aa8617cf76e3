"""The checks of new jobs, and the notices for their user. A request is accepted as a whole or not at all."""

import asyncio
import posixpath
import time
from collections import defaultdict
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

from aiohttp import web

from dljob.control.acting.sidecar_options import has_own_folder
from dljob.control.judging import checkpoints
from dljob.control.situation.ports import Entry
from dljob.control.situation.quarantine import find_held
from dljob.control.situation.status import Status
from dljob.control.situation.status_documents import Json
from dljob.core.model import Job, JobId
from dljob.local.api import submissions
from dljob.local.api.access import Access
from dljob.local.api.refusals import Complaint, RefusedError
from dljob.local.api.submissions import Submission, read_documents, read_environment
from dljob.local.containers.trying import Trials
from dljob.local.environments import Origin, Submitter
from dljob.local.files.file_threads import AllBusyError, FileThreads
from dljob.local.pods import trainers
from dljob.local.server_parts import ServerParts
from dljob_wire.problems import Problem

FILES_S = 2.0
"""How long to wait for the file system of checkpoints."""
READS_AT_ONCE: Final = 4
"""The most requests of one user whose documents are checked at the same time; threads are left for other users."""


class Intake:
    def __init__(self, parts: ServerParts, access: Access) -> None:
        self._parts = parts
        self._registry = parts.registry
        self._access = access
        self._trials = Trials(parts.folders.root, sees_gpus=not parts.virtual_gpus)
        self._threads = FileThreads()
        self._turns: defaultdict[int, asyncio.Semaphore] = defaultdict(
            lambda: asyncio.Semaphore(READS_AT_ONCE)
        )
        """Of each user."""

    async def check(self, request: web.Request, *, tries: bool) -> list[Submission]:
        """
        Read the documents of a request; refuse all of them if one is wrong.

        With ``tries`` also start their containers once; a preview starts nothing.
        """
        documents = await self._read_claimed(request)
        recorded = await read_environment(request)
        origin = Origin.of(self._access.caller(request), recorded)
        self.insist_on_few(origin.submitter, len(documents))
        async with self._turns[origin.submitter.uid]:
            read = await submissions.read(
                documents,
                origin,
                self._trials if tries else None,
                looks=not self._parts.shared,
                threads=self._threads,
            )
        # Not in the thread, because the list of jobs belongs to the event loop.
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
        """Refuse more jobs of one user than a shared server allows."""
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
                f"{submitter.user} has {there} jobs that have not ended and asks for {more} more, but {most} is the most"
                " for one user here; cancel some, or submit these when others have ended",
            )

    async def notices(self, taken_in: Sequence[Submission], request: web.Request) -> list[str]:
        """Name the fields without effect, shared checkpoint folders, and checkpoints of former runs, each once."""
        notices = [
            notice for each in taken_in for notice in trainers.notices_here(each.job, each.document)
        ]
        notices += filter(None, (checkpoints.notice_for(each.job) for each in taken_in))
        entries = {each.job.id: Entry(each.job, 0, Status()) for each in taken_in}
        held = find_held(entries, self._registry.holds)
        notices += [f"{job} waits: {why}" for job, why in held.items()]
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
        """Name the files of former runs in the checkpoint folders of these jobs."""
        if self._parts.shared:
            # Root must not read folders for users who may not.
            jobs = [job for job in jobs if has_own_folder(job)]
        folders = [
            self._parts.folders.checkpoints(job.id)
            if has_own_folder(job)
            else Path(job.checkpoint.path)
            for job in jobs
        ]
        try:
            async with asyncio.timeout(FILES_S):
                found = await self._threads.run(
                    lambda: [
                        newest_in(folder, job.checkpoint.files)
                        for job, folder in zip(jobs, folders, strict=True)
                    ]
                )
        except (TimeoutError, AllBusyError):
            return []
        return [
            f"{job.id} finds {newest} in {folder}. If that is a checkpoint of a former run, the program may continue"
            " from it; to start from scratch, name another folder"
            for job, folder, newest in zip(jobs, folders, found, strict=True)
            if newest
        ]

    def insist_on_free_names(self, taken_in: Sequence[Submission]) -> None:
        """Refuse names that other jobs have taken since the check."""
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
        documents = await read_documents(request)
        self._access.claim(request, documents)
        return documents


def newest_in(folder: Path, pattern: str) -> str:
    """
    Name the entry of a folder that changed last, and the time; empty if there is none.

    The pattern is that of checkpoints below the folder, whose first part names entries of the folder itself.
    """
    wanted = pattern.partition("/")[0] or "*"
    # Hidden files are the SideCar's.
    found = [
        (_changed(path), path.name)
        for path in _list(folder)
        if path.name[:1] != "." and fnmatchcase(path.name, wanted)
    ]
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
