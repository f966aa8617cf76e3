"""
One exception for each kind of refusal, each with its problems.

The packages below raise exceptions of their own, some of them click's, for the command prints them.
:func:`refusing` turns each into one of these, so that a program needs to know only this module.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import click

from dljob import installed
from dljob.client.backend import Away, BackendError, NotThere
from dljob.client.backend import Conflict as Overtaken
from dljob.core import checking
from dljob.sim.errors import BadInput
from dljob_wire import problems


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem and its remedy."""

    message: str
    remedy: str = ""
    path: str = ""
    """The path of the field in a document or a file."""
    document: int | None = None
    """The index of the document."""
    source: str = ""
    """The file, with the line if it is known."""

    def __str__(self) -> str:
        where = "".join(f"{part}: " for part in (self.source, self.path) if part)
        return f"{where}{self.message}{f'; {self.remedy}' if self.remedy else ''}"


class Refused(Exception):
    """The request is refused; ``problems`` says why, and each problem names its remedy."""

    def __init__(self, *found: Problem) -> None:
        super().__init__(*found)
        self.problems = found

    def __str__(self) -> str:
        return "\n".join(map(str, self.problems))


class WrongJob(Refused):
    """The documents of jobs are wrong."""


class WrongInput(Refused):
    """A file or a value is wrong."""


class WrongUse(Refused):
    """The arguments contradict each other or are invalid."""


class NotFound(Refused):
    """There is no such job, node or GPU."""


class Conflict(Refused):
    """The job changed meanwhile, or its state does not allow the request."""


class Unreachable(Refused):
    """No server answers there."""


class BrokenLaw(Refused):
    """The decision of a policy breaks a law of plans."""


class MissingExtra(Refused, ImportError):
    """A package is missing that an extra of dljob installs, such as ``cluster``."""


class NeverHolds(Refused):
    """A job can no longer reach the goal of a wait."""


class TimedOut(Refused, TimeoutError):
    """A job did not reach the goal in time."""


@contextmanager
def refusing() -> Iterator[None]:
    """Translate errors of the packages below into :class:`Refused`."""
    try:
        yield
    except installed.MissingExtra as error:
        raise MissingExtra(Problem(error.message, error.remedy)) from error
    except ModuleNotFoundError as error:
        missing = installed.find_missing(error)
        if missing is None:
            raise
        raise MissingExtra(Problem(missing.message, missing.remedy)) from error
    except problems.WrongDocument as error:
        raise WrongJob(*of_document(error)) from error
    except BadInput as error:
        source = error.file if error.line is None else f"{error.file}:{error.line}"
        raise WrongInput(
            Problem(error.message, error.remedy, path=error.field, source=source)
        ) from error
    except click.ClickException as error:
        raise WrongUse(split(" ".join(error.format_message().split()))) from error
    except BackendError as error:
        found = [split(each.line, each.path, each.document) for each in error.complaints]
        raise _kind_of(error)(*(found or [split(str(error))])) from error
    except checking.BrokenLaw as error:
        raise BrokenLaw(Problem(str(error))) from error


def of_document(error: problems.WrongDocument, document: int | None = None) -> list[Problem]:
    """List the problems of one document."""
    return [
        Problem(each.message, each.remedy, each.path, document, error.source)
        for each in error.problems
    ]


def split(line: str, path: str = "", document: int | None = None) -> Problem:
    """Parse a problem from the line that the command prints."""
    message, _, remedy = line.removeprefix(f"{path}: " if path else "").partition("; ")
    return Problem(message, remedy, path, document)


def _kind_of(error: BackendError) -> type[Refused]:
    if error.complaints:
        return WrongJob
    if isinstance(error, Away):
        return Unreachable
    if isinstance(error, NotThere):
        return NotFound
    return Conflict if isinstance(error, Overtaken) else Refused
