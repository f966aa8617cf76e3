"""
The answers of the server when it refuses a request.

``{"error": one line, "problems": [{"document", "path", "value", "message", "remedy"}]}``, where ``document`` is the number of
the document in the request.
"""

import asyncio
import logging
import math
import sqlite3
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple

from aiohttp import web

from dljob.control.situation.ports import Fenced
from dljob.core.checking import BrokenLaw
from dljob.local.jobs.registry import is_locked, why_not_written
from dljob.store.store import StoreError
from dljob_wire.problems import Problem

log = logging.getLogger(__name__)

PATIENCE_S = 10.0
"""How long a request waits while another process has locked the list of jobs."""
RETRY_S = 0.1
LONGEST_VALUE = 1000
"""The longest wrong value that is sent back, in characters or bits."""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Complaint(NamedTuple):
    """A problem of a document."""

    problem: Problem
    document: int = 0


class RefusedError(Exception):
    def __init__(self, status: int, error: str, complaints: Sequence[Complaint] = ()) -> None:
        super().__init__(error)
        self.status = status
        self.error = error
        self.complaints = tuple(complaints)

    @classmethod
    def because_of(cls, complaints: Sequence[Complaint], status: int = 422) -> "RefusedError":
        """Refuse documents for all their problems."""
        first = complaints[0].problem.line()
        more = f" (and {len(complaints) - 1} more)" if len(complaints) > 1 else ""
        return cls(status, first + more, complaints)

    def answer(self) -> web.Response:
        return refuse(self.status, self.error, self.complaints)


def refuse(status: int, error: str, complaints: Sequence[Complaint] = ()) -> web.Response:
    problems = [_written(complaint) for complaint in complaints]
    return web.json_response({"error": error, "problems": problems}, status=status)


def _written(complaint: Complaint) -> dict[str, Any]:
    problem = complaint.problem
    return {
        "document": complaint.document,
        "path": problem.path,
        "value": _shown(problem.value),
        "message": problem.message,
        "remedy": problem.remedy,
    }


def _shown(value: object) -> object:
    if isinstance(value, str):
        return value[:LONGEST_VALUE]
    if isinstance(value, int):
        return value if value.bit_length() <= LONGEST_VALUE else None
    return value if isinstance(value, float) and math.isfinite(value) else None


@web.middleware
async def answer_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Answer every error in the form above."""
    until = time.monotonic() + PATIENCE_S
    while True:
        try:
            return await _answer(request, handler)
        except sqlite3.Error as error:
            if not is_locked(error) or time.monotonic() > until:
                locked = 503 if is_locked(error) else 507
                return refuse(locked, f"the list of jobs {why_not_written(error)}")
        await asyncio.sleep(RETRY_S)


async def _answer(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except RefusedError as refused:
        return refused.answer()
    except web.HTTPNotFound:
        return refuse(404, f"there is nothing at {request.path}; see docs/reference/machine-api.md")
    except web.HTTPMethodNotAllowed as error:
        allowed = ", ".join(sorted(error.allowed_methods))
        return refuse(405, f"{request.path} accepts only {allowed}")
    except web.HTTPRequestEntityTooLarge:
        return refuse(413, "the request is too large; submit fewer jobs at once")
    except (web.HTTPException, sqlite3.Error):
        raise
    except Exception as error:  # noqa: BLE001 - the controller survives any failure of a request
        return _explain(error, request)


def _explain(error: Exception, request: web.Request) -> web.Response:
    match error:
        case Fenced():
            return refuse(503, f"{error}; ask that one")
        case StoreError():
            return refuse(503, str(error))
        case BrokenLaw():
            return refuse(500, f"{error} Please report it")
    log.error("%s %s failed", request.method, request.path, exc_info=error)
    return refuse(
        500, f"{type(error).__name__} in dljob up; its log has the details; please report it"
    )
