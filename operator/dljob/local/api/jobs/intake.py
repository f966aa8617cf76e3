"""The checks of new jobs, and the notices for their user. A request is accepted as a whole or not at all."""

import asyncio
import posixpath
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

from aiohttp import web

from dljob.control.judging import checkpoints
from dljob.control.situation.ports import Entry
from dljob.control.situation.quarantine import find_held
from dljob.control.situation.status import Status
from dljob.control.situation.status_documents import Json
from dljob.core.documents import jobfile
from dljob.core.documents.jobschema import KIND
from dljob.core.model import Job, JobId
from dljob.local import environments
from dljob.local.api import showing
from dljob.local.api.access import Access
from dljob.local.api.refusals import Complaint, RefusedError
from dljob.local.api.requests import CALLER, read_body
from dljob.local.containers.trying import Trials
from dljob.local.environments import Origin, Submitter
from dljob.local.files.file_threads import AllBusyError, FileThreads
from dljob.local.pods import trainers
from dljob.local.server_parts import ServerParts
from dljob_wire.problems import MAX_PROBLEMS, Problem

MOST_JOBS = 10_000
"""In one request."""
FILES_S = 2.0
"""How long to wait for the file system of checkpoints."""
READS_AT_ONCE: Final = 4
"""The most requests of one user whose documents are checked at the same time; threads are left for other users."""


class Submission(NamedTuple):
    """A valid document."""

    job: Job
    document: Json


class TakenIn(NamedTuple):
    """The valid documents of a request, with the user and the environment that it comes from."""

    items: Sequence[Submission]
    origin: Origin


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

    async def check(self, request: web.Request, *, tries: bool) -> TakenIn:
        """
        Read the documents of a request; refuse all of them if one is wrong.

        With ``tries`` also start their containers once; a preview starts nothing.
        """
        body, caller = await read_body(request), request[CALLER]
        documents = _list_documents(body)
        self._access.claim(caller, documents)
        try:
            recorded = environments.check(body.get("environment"))
        except environments.EnvironmentVariablesError as error:
            raise RefusedError(400, str(error)) from error
        origin = Origin.of(caller, recorded)
        self._insist_on_few(caller, len(documents))
        trials = self._trials if tries else None
        # Of all that threads use, this one shares only the trials.
        reading = partial(_read, documents, origin, trials, looks=not self._parts.shared)
        try:
            async with self._turns[caller.uid]:
                good, complaints = await self._threads.run(reading)
        except AllBusyError as error:
            raise RefusedError(
                503,
                "earlier submissions wait for files or containers that do not answer, and no more can be"
                " checked meanwhile; look for a file system that hangs, or submit again later",
            ) from error
        # Not in the thread, because the list of jobs belongs to the event loop.
        self._insist_on_free_names(good, complaints)
        return TakenIn([*good.values()], origin)

    def insist_on_places(self, taken_in: TakenIn) -> None:
        """Refuse what :meth:`check` accepted if other requests have changed the list of jobs since."""
        self._insist_on_few(taken_in.origin.submitter, len(taken_in.items))
        self._insist_on_free_names(dict(enumerate(taken_in.items)), ())

    def _insist_on_few(self, submitter: Submitter, more: int) -> None:
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

    async def notices(self, taken_in: TakenIn) -> list[str]:
        """Name the fields without effect, shared checkpoint folders, and checkpoints of former runs, each once."""
        items = taken_in.items
        notices = [
            notice for each in items for notice in trainers.notices_here(each.job, each.document)
        ]
        notices += filter(None, (checkpoints.notice_for(each.job) for each in items))
        entries = {each.job.id: Entry(each.job, 0, Status()) for each in items}
        held = find_held(entries, self._registry.holds)
        notices += [f"{job} waits: {why}" for job, why in held.items()]
        may_see = self._access.may_see(taken_in.origin.submitter)
        living = [each for each in self._registry.entries.values() if may_see(each.job.id)]
        owners = {
            posixpath.normpath(entry.job.checkpoint.path): entry.job.id
            for entry in living
            if not trainers.has_own_folder(entry.job) and not entry.status.is_final
        }
        for each in items:
            if trainers.has_own_folder(each.job):
                continue
            path = posixpath.normpath(each.job.checkpoint.path)
            other = owners.setdefault(path, each.job.id)
            if other != each.job.id:
                notices.append(
                    f"{each.job.id} and {other} have one checkpoint.path ({path}) and will overwrite"
                    " each other's; give each a folder of its own"
                )
        notices += await self._found_checkpoints([each.job for each in items])
        return list(dict.fromkeys(notices))

    async def _found_checkpoints(self, jobs: Sequence[Job]) -> list[str]:
        """Name the files of former runs in the checkpoint folders of these jobs."""
        if self._parts.shared:
            # Root must not read folders for users who may not.
            jobs = [job for job in jobs if trainers.has_own_folder(job)]
        folders = [
            self._parts.folders.checkpoints(job.id)
            if trainers.has_own_folder(job)
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

    def _insist_on_free_names(
        self, good: Mapping[int, Submission], complaints: Sequence[Complaint]
    ) -> None:
        """Refuse documents for these complaints, and for names that other jobs have."""
        names: set[JobId] = set()
        complaints = [*complaints]
        for number, each in good.items():
            complaints += [
                Complaint(problem, number) for problem in self._taken(each.job.id, names)
            ]
            names.add(each.job.id)
        if complaints:
            raise RefusedError.because_of(sorted(complaints, key=lambda each: each.document))

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


def _list_documents(body: Json) -> list[Json]:
    if body.get("kind") != f"{KIND}List":
        return [body]
    items = body.get("items")
    if not isinstance(items, list) or not items:
        raise RefusedError(400, "items: there are none; put at least one DLJob into the list")
    if len(items) > MOST_JOBS:
        too_many = (
            f"items: there are {len(items):,}, and {MOST_JOBS:,} jobs can be submitted at once"
        )
        raise RefusedError(413, f"{too_many}; submit fewer at once")
    return items


def _read(
    documents: Sequence[Json], origin: Origin, trials: Trials | None, *, looks: bool
) -> tuple[dict[int, Submission], list[Complaint]]:
    """
    Parse and check documents; with ``looks`` also the files that they name, and with ``trials`` their containers.

    The results have the numbers of the documents in the request.
    """
    good: dict[int, Submission] = {}
    complaints: list[Complaint] = []
    until = trials.deadline() if trials is not None else 0.0
    for number, document in enumerate(documents):
        try:
            job = parse(document, number)
        except RefusedError as refused:
            complaints += refused.complaints
        else:
            problems = [*trainers.problems_here(job), *environments.length_problems(job)]
            problems += environments.problems(job) if looks else ()
            # References can be filled in only in a valid template.
            if not problems:
                problems += trainers.starting_problems(job, origin.variables)
                problems += trainers.folder_problems(job, document) if looks else ()
            if not problems and trials is not None:
                folder = trainers.folder_of(job, document)
                problems += trials.problems(job, origin, folder, until=until)
            complaints += [Complaint(problem, number) for problem in problems]
            good[number] = Submission(job, as_written(document))
        if len(complaints) >= MAX_PROBLEMS:
            break
    return good, complaints


def parse(document: Json, number: int) -> Job:
    try:
        return jobfile.parse(document, require_template=True)
    except jobfile.JobFileError as error:
        complaints = [Complaint(problem, number) for problem in error.problems]
        raise RefusedError.because_of(complaints) from error


def as_written(document: Mapping[str, Any]) -> Json:
    """Keep what the user wrote, without the fields that the server adds."""
    metadata = {
        name: value for name, value in document["metadata"].items() if name not in showing.RENEWED
    }
    kept = {name: value for name, value in document.items() if name != "status"}
    return {**kept, "metadata": metadata}


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
