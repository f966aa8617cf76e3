"""
Sends notices of chosen events to a program or a web server, as the settings under ``notify`` say.

Each notice has a task of its own that sends it, and repeats that after a failure that may pass. So a receiver that is
slow or down delays no decision, and a notice that it does not take delays no other one. The number of these tasks is
bounded, and a notice that cannot be delivered is dropped with a line in the log. A controller that restarts does not
send the notices of its predecessor again.
"""

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import aiohttp
from aiohttp import hdrs

from dljob.control.judging.trials import NOT_CONFIRMED
from dljob.control.reporting.formatting import duration
from dljob.control.settings import Notify
from dljob.control.situation.ports import Entry
from dljob.control.situation.rules import News
from dljob.control.situation.scene import Scene
from dljob.control.situation.status import ConditionType, Status
from dljob.core.model import JobId, Phase

log = logging.getLogger(__name__)

MOST_WAITING: Final = 1000
PAUSES: Final = (1.0, 5.0, 30.0, 120.0)
"""The pauses before a failed notice is sent again."""
LIMIT_S: Final = 15.0
"""The limit of one attempt."""
MOST_AT_ONCE: Final = 4
"""The most attempts at the same time."""
PASSING: Final = frozenset({408, 425, 429})
"""The refusals of a client's request (4xx) that a later attempt may not get."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """One event, as a receiver gets it."""

    job: JobId
    event: str
    reason: str
    message: str
    at: float

    def write(self) -> bytes:
        document = {
            "job": self.job,
            "event": self.event,
            "reason": self.reason,
            "message": self.message,
            "at": datetime.fromtimestamp(self.at, UTC).isoformat(timespec="seconds"),
            # The field that chat programs show.
            "text": f"{self.job}: {self.message}",
        }
        return json.dumps(document).encode()


class Undelivered(Exception):
    """A receiver did not take a notice; ``str()`` is the reason, without secrets."""

    def __init__(self, reason: str, *, is_final: bool = False) -> None:
        """``is_final``: the receiver would refuse the same notice again."""
        super().__init__(reason)
        self.is_final = is_final


class Notices:
    """Sends notices; one for the life of a controller."""

    def __init__(
        self,
        settings: Notify,
        clock: Callable[[], float],
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._sleep = sleep
        self._looked_at = clock()
        self._sending: set[asyncio.Task[None]] = set()
        self._turns = asyncio.Semaphore(MOST_AT_ONCE)

    def take(
        self, before: Scene, after: Mapping[JobId, Status], *, news: Iterable[tuple[JobId, News]]
    ) -> None:
        """Send the chosen events of a cycle."""
        if self._settings.is_wanted:
            self._put(_find_ends(before, after))
            self._put(
                Notice(
                    job=job, event=event, reason=each.reason, message=each.message, at=before.now
                )
                for job, each in news
                for event in (
                    each.reason,
                    *(["noCheckpoint"] if each.reason == NOT_CONFIRMED else []),
                )
            )

    def find_waits(self, scene: Scene) -> None:
        """Send notices of the jobs whose wait has become too long since the last call."""
        limit, earlier = self._settings.wait_seconds, self._looked_at
        self._looked_at = scene.now
        if self._settings.is_wanted and limit > 0:
            self._put(
                notice
                for entry in scene.entries.values()
                for notice in _find_wait(entry, limit, earlier=earlier, now=scene.now)
            )

    async def end(self) -> None:
        """Stop sending; notices that are not delivered yet are lost."""
        for task in self._sending:
            task.cancel()
        await asyncio.gather(*self._sending, return_exceptions=True)

    def _put(self, notices: Iterable[Notice]) -> None:
        ways = [self._post] if self._settings.url or self._settings.url_file else []
        ways += [self._run] if self._settings.command else []
        for notice in notices:
            if notice.event not in self._settings.events:
                continue
            if len(self._sending) >= MOST_WAITING:
                log.warning(
                    "too many notices wait; drops that of %s of %s", notice.event, notice.job
                )
                continue
            for send in ways:
                task = asyncio.get_running_loop().create_task(self._insist(send, notice))
                self._sending.add(task)
                task.add_done_callback(self._sending.discard)

    async def _insist(self, send: Callable[[bytes], Awaitable[None]], notice: Notice) -> None:
        reason = ""
        for pause in (0.0, *PAUSES):
            await self._sleep(pause)
            try:
                async with self._turns, asyncio.timeout(LIMIT_S):
                    await send(notice.write())
                return
            except TimeoutError:
                reason = f"no answer within {LIMIT_S:g} s"
            except Undelivered as error:
                reason = str(error)
                if error.is_final:
                    break
        log.warning("drops the notice of %s of %s: %s", notice.event, notice.job, reason)

    async def _post(self, body: bytes) -> None:
        headers = {hdrs.CONTENT_TYPE: "application/json"}
        try:
            # Read each time, because a Secret may be replaced while the controller runs.
            url = self._settings.url or _read_line(self._settings.url_file)
            if self._settings.token_file:
                headers[hdrs.AUTHORIZATION] = f"Bearer {_read_line(self._settings.token_file)}"
            async with (
                aiohttp.ClientSession(trust_env=True) as session,
                session.post(url, data=body, headers=headers, allow_redirects=False) as answer,
            ):
                if answer.status >= 300:
                    is_final = 400 <= answer.status < 500 and answer.status not in PASSING
                    raise Undelivered(f"the server answers {answer.status}", is_final=is_final)
        except OSError as error:
            raise Undelivered(error.strerror or type(error).__name__) from error
        except (aiohttp.ClientError, ValueError) as error:
            # Without its text, which may contain the address and so its secret.
            raise Undelivered(type(error).__name__) from error

    async def _run(self, body: bytes) -> None:
        pipe, nowhere = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
        try:
            process = await asyncio.create_subprocess_exec(
                *self._settings.command, stdin=pipe, stdout=nowhere, stderr=nowhere
            )
        except OSError as error:
            raise Undelivered(f"{self._settings.command[0]}: {error.strerror}") from error
        try:
            await process.communicate(body)
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        if process.returncode != 0:
            raise Undelivered(f"{self._settings.command[0]} ended with {process.returncode}")


def _read_line(path: str) -> str:
    return Path(path).read_text(encoding="utf-8").strip()


def _find_ends(before: Scene, after: Mapping[JobId, Status]) -> Iterator[Notice]:
    for job, status in after.items():
        if status.is_final and not before.entries[job].status.is_final:
            finished = status.condition(ConditionType.FINISHED)
            yield Notice(
                job=job,
                event="done" if status.phase is Phase.COMPLETED else "failed",
                reason=finished.reason if finished is not None else status.phase.value,
                message=status.message,
                at=before.now,
            )


def _find_wait(entry: Entry, limit: float, *, earlier: float, now: float) -> Iterator[Notice]:
    status = entry.status
    if status.phase not in (Phase.SUBMITTED, Phase.QUEUED):
        return
    scheduled = status.condition(ConditionType.SCHEDULED)
    since = scheduled.since if scheduled is not None else status.submitted_at
    if earlier < since + limit <= now:
        yield Notice(
            job=entry.job.id,
            event="waits",
            reason=scheduled.reason if scheduled is not None else status.phase.value,
            message=f"waits for {duration(now - since)}: {status.message.removeprefix('waits: ')}",
            at=now,
        )
