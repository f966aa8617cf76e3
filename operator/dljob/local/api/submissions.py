"""
Reads the body of a request: a document, several jobs, an environment.

A request can hold millions of values: they are counted first, and jobs are read in another thread.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from aiohttp import web

from dljob.control.situation.status_documents import Json
from dljob.core.documents import jobfile
from dljob.core.documents.jobschema import KIND
from dljob.core.model import Job
from dljob.local import environments
from dljob.local.api import showing
from dljob.local.api.refusals import Complaint, RefusedError
from dljob.local.api.turns import TURNS
from dljob.local.containers.trying import Trials
from dljob.local.environments import Origin
from dljob.local.files.file_threads import AllBusyError, FileThreads
from dljob.local.pods import trainers
from dljob_wire.problems import MAX_PROBLEMS, Problem

MOST_JOBS = 10_000
"""In one request."""
BYTES_A_VALUE: Final = 16
"""The least for each value of the largest request. Jobs have more than that."""
BODY: Final = web.RequestKey("body", dict[str, Any])


@dataclass(frozen=True, slots=True)
class Submission:
    """A valid document."""

    job: Job
    document: Json


@dataclass(slots=True)
class Read:
    """The results of reading documents."""

    good: list[tuple[int, Submission]] = field(default_factory=list)
    """With their numbers in the request."""
    complaints: list[Complaint] = field(default_factory=list)


async def read(
    documents: Sequence[Json],
    origin: Origin,
    trials: Trials | None,
    *,
    looks: bool,
    threads: FileThreads,
) -> Read:
    """
    Read and check documents; with ``looks`` also the files that they name, and with ``trials`` their containers.
    """
    # The thread shares only `trials` with others.
    reading = partial(_read, documents, origin, trials, looks=looks)
    try:
        return await threads.run(reading)
    except AllBusyError as error:
        raise RefusedError(
            503,
            "earlier submissions wait for files or containers that do not answer, and no more can be"
            " checked meanwhile; look for a file system that hangs, or submit again later",
        ) from error


def _read(documents: Sequence[Json], origin: Origin, trials: Trials | None, *, looks: bool) -> Read:
    result = Read()
    until = trials.deadline() if trials is not None else 0.0
    for number, document in enumerate(documents):
        try:
            job = parse(document, number)
        except RefusedError as refused:
            result.complaints += refused.complaints
        else:
            problems = list(_iter_problems(job, looks=looks))
            # References can be filled in only in a valid template.
            if not problems:
                problems += trainers.starting_problems(job, origin.variables)
                problems += trainers.folder_problems(job, document) if looks else ()
            if not problems and trials is not None:
                folder = trainers.folder_of(job, document)
                problems += trials.problems(job, origin, folder, until=until)
            result.complaints += [Complaint(problem, number) for problem in problems]
            result.good.append((number, Submission(job, as_written(document))))
        if len(result.complaints) >= MAX_PROBLEMS:
            break
    return result


def _iter_problems(job: Job, *, looks: bool) -> Iterator[Problem]:
    yield from trainers.problems_here(job)
    yield from environments.length_problems(job)
    if looks:
        yield from environments.problems(job)


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


async def read_documents(request: web.Request) -> list[Json]:
    """Read one document, or the items of a list."""
    body = await read_body(request)
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


async def read_environment(request: web.Request) -> dict[str, str] | None:
    """Read the environment of the submission; ``None`` if the request has none."""
    try:
        return environments.check((await read_body(request)).get("environment"))
    except environments.EnvironmentVariablesError as error:
        raise RefusedError(400, str(error)) from error


async def read_body(request: web.Request) -> Json:
    """Read the JSON object of a request, once."""
    if BODY not in request:
        text = await _read_text(request)
        async with request.app[TURNS].take(request):
            request[BODY] = _decode(text)
    body: Json = request[BODY]
    return body


async def _read_text(request: web.Request) -> bytes:
    """Read a request that is not too dense: nothing else goes on while Python decodes it."""
    if "Content-Encoding" in request.headers:
        raise RefusedError(415, "the request is compressed; send it as it is")
    text = await request.read()
    most = request.client_max_size // BYTES_A_VALUE
    if sum(map(text.count, (b",", b"[", b"{"))) > most:
        raise RefusedError(
            413, f"the request has more than {most:,} values; submit fewer jobs at once"
        )
    return text


def _decode(text: bytes) -> Json:
    try:
        body = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RefusedError(400, f"the request is not JSON ({error})") from error
    if not isinstance(body, dict):
        raise RefusedError(400, "the request is not a JSON object; send one")
    return body
