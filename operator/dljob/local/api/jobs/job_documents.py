"""The documents of jobs: whole for their owner, in outline for other users."""

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Final

from aiohttp import web

from dljob.control.situation.ports import Entry
from dljob.control.situation.status_documents import Json
from dljob.core.model import JobId
from dljob.local import environments
from dljob.local.api import labels, showing
from dljob.local.api.access import Access
from dljob.local.api.jobs import expected_turns
from dljob.local.api.refusals import RefusedError
from dljob.local.api.requests import CALLER
from dljob.local.environments import FindHome
from dljob.local.files.bounded_checks import NoAnswerError
from dljob.local.jobs.registry import Registry
from dljob.local.server_parts import LatestScene, ServerParts

AT_ONCE: Final = 50


def _parts(jobs: Sequence[JobId]) -> Iterator[Sequence[JobId]]:
    return (jobs[begin : begin + AT_ONCE] for begin in range(0, len(jobs), AT_ONCE))


def find_entry(registry: Registry, request: web.Request) -> Entry:
    name = JobId(request.match_info["name"])
    entry = registry.entries.get(name)
    if entry is None:
        raise RefusedError(404, f"{name}: there is no such job; dljob get lists the jobs")
    return entry


def _find_home_in_time(folder: Path) -> environments.Variables:
    """Leave out an environment whose folder does not answer."""
    try:
        return environments.find_home(folder)
    except NoAnswerError:
        return {}


def _find_nothing(_: Path) -> environments.Variables:
    return {}


class JobDocuments:
    """Makes the document of a job from its entry and the latest scene."""

    def __init__(
        self,
        parts: ServerParts,
        latest: LatestScene,
        access: Access,
        waiting: expected_turns.ExpectedTurns,
    ) -> None:
        self._registry = parts.registry
        self._clock = parts.clock
        self._is_shared = parts.shared
        self._latest = latest
        self._access = access
        self._turns = waiting

    async def listed(
        self, request: web.Request, selector: labels.Selector, *, entries: Iterable[Entry]
    ) -> list[Json]:
        """
        Show the selected jobs, in parts, so that other requests need not wait for thousands of jobs.

        Other users' labels are not compared, which would reveal them.
        """
        may_see = self._access.may_see(request[CALLER])
        # Thousands of jobs use a few interpreters.
        find = cache(_find_home_in_time)
        items = []
        for part in _parts([entry.job.id for entry in entries]):
            # Jobs may have been removed since the part before.
            for entry in filter(None, map(self._registry.entries.get, part)):
                is_whole = may_see(entry.job.id)
                if selector.selects(entry.job.labels if is_whole else {}):
                    items.append(self.document(entry, is_whole=is_whole, find=find))
            await asyncio.sleep(0)
        return items

    def document(
        self, entry: Entry, *, is_whole: bool = True, find: FindHome = _find_home_in_time
    ) -> Json:
        job = entry.job.id
        if self._is_shared:
            # Root must not read files for users who may not.
            find = _find_nothing
        seen = self._latest.see()
        document = showing.job_document(
            self._latest.renewed(entry),
            version=f"{self._registry.epoch}.{self._registry.changes.version_of(job)}",
            now=self._clock(),
            outlook=seen[2] if seen is not None else None,
            environment=environments.of_job(entry.job, self._registry.origin(job), find=find)
            if is_whole
            else {},
            queue=self._turns.document(job) if entry.status.placement is None else None,
        )
        if is_whole:
            return document
        return showing.outline(document, self._registry.origin(job).submitter.user)

    def version(self) -> str:
        return f"{self._registry.epoch}.{self._registry.changes.version}"
