"""
What the server answers when it cannot do what it was asked: one form for everything.

``{"error": one line, "problems": [{"path", "value", "message", "remedy"}]}``. A problem of one of
several documents also says of which, by its number in ``document``.
"""

import logging
import sqlite3
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple

from aiohttp import web

from dlcontrol.platforms import Fenced
from dlcontrol.store import StoreError
from dlcore.checking import BrokenLaw
from dlcore.problems import Problem

log = logging.getLogger(__name__)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Complaint(NamedTuple):
    """What is wrong with one of the documents of a request."""

    problem: Problem
    document: int = 0


class Refused(Exception):
    """What was asked for is not done."""

    def __init__(self, status: int, error: str, complaints: Sequence[Complaint] = ()) -> None:
        super().__init__(error)
        self.status = status
        self.error = error
        self.complaints = tuple(complaints)

    @classmethod
    def because_of(cls, complaints: Sequence[Complaint], status: int = 422) -> "Refused":
        """Refuse documents for all that is wrong with them."""
        first = complaints[0].problem.line()
        more = f" (and {len(complaints) - 1} more)" if len(complaints) > 1 else ""
        return cls(status, first + more, complaints)

    def answer(self) -> web.Response:
        """Say it to whoever asked."""
        return refuse(self.status, self.error, self.complaints)


def refuse(status: int, error: str, complaints: Sequence[Complaint] = ()) -> web.Response:
    """Make the answer."""
    problems = [_written(complaint) for complaint in complaints]
    return web.json_response({"error": error, "problems": problems}, status=status)


def _written(complaint: Complaint) -> dict[str, Any]:
    problem = complaint.problem
    return {
        "document": complaint.document,
        "path": problem.path,
        "value": problem.value,
        "message": problem.message,
        "remedy": problem.remedy,
    }


@web.middleware
async def speak_plainly(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Turn whatever goes wrong into an answer of the one form."""
    try:
        return await handler(request)
    except Refused as refused:
        return refused.answer()
    except web.HTTPNotFound:
        return refuse(404, f"there is nothing at {request.path}; see docs/command.md")
    except web.HTTPMethodNotAllowed as error:
        allowed = ", ".join(sorted(error.allowed_methods))
        return refuse(405, f"{request.path} can only be asked with {allowed}")
    except web.HTTPRequestEntityTooLarge:
        return refuse(413, "the request is too large; submit fewer jobs at once")
    except web.HTTPException:
        raise
    except Exception as error:  # noqa: BLE001 - whatever it is, the controller goes on
        return _explain(error, request)


def _explain(error: Exception, request: web.Request) -> web.Response:
    match error:
        case Fenced():
            return refuse(503, f"{error}; ask that one")
        case StoreError():
            return refuse(503, str(error))
        case sqlite3.Error():
            return refuse(
                507, f"the list of jobs cannot be written ({error}); make room on its disk"
            )
        case BrokenLaw():
            return refuse(500, f"the policy decided what must not be ({error}); report this")
    log.error("%s %s went wrong", request.method, request.path, exc_info=error)
    return refuse(500, f"{type(error).__name__} in dljob up; its log tells more, please report it")
