"""
The documents of job files, of the files in folders, and of standard input.
"""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from dlctl.backends import BackendError, Json
from dlctl.messages import complain

KIND = "DLJob"
STDIN = "-"


class Source(NamedTuple):
    """A document, and where it stands."""

    place: str
    """``FILE:LINE``."""
    document: Any


class WrongJobs(Exception):
    """Nothing was submitted, for all these reasons."""

    def __init__(self, lines: Sequence[str]) -> None:
        super().__init__("\n".join(lines))
        self.lines = tuple(lines)


def iter_sources(name: str) -> Iterator[Source]:
    """Yield the documents of a file, of a folder, or of standard input."""
    from dlsim import yamlfiles  # noqa: PLC0415 - not for --help, nor for completion
    from dlsim.errors import BadInput  # noqa: PLC0415

    if name == STDIN:
        found = [("stdin", yamlfiles.read(sys.stdin, "stdin"))]
    else:
        paths = yamlfiles.find_files(Path(name))
        found = [(str(path), yamlfiles.load(path)) for path in paths]
    for file, documents in found:
        there = [(line, content) for line, content in documents if content is not None]
        if not there:
            raise BadInput(file, "holds no DLJob", remedy="put at least one DLJob into it")
        for line, content in there:
            yield from _iter_items(Source(f"{file}:{line}", content))


def _iter_items(source: Source) -> Iterator[Source]:
    """Yield the items of a list, as ``dljob get -o yaml`` prints it."""
    content = source.document
    if isinstance(content, dict) and content.get("kind") == "DLJobList":
        items = content.get("items")
        for item in items if isinstance(items, list) else ():
            yield Source(source.place, item)
    else:
        yield source


def is_job(source: Source) -> bool:
    """Whether a document is meant to be a job; so is one that does not say what it is."""
    document = source.document
    return not isinstance(document, dict) or document.get("kind", KIND) == KIND


def check(sources: Sequence[Source]) -> list[Json]:
    """Find everything that is wrong with the documents by themselves."""
    from dlcore import jobfile  # noqa: PLC0415 - takes longer to load than to do the rest

    lines: list[str] = []
    for source in sources:
        try:
            jobfile.parse(source.document, source=source.place, require_template=True)
        except jobfile.JobFileError as error:
            lines += error.lines()
    if lines:
        raise WrongJobs(lines)
    return [source.document for source in sources]


def refuse(error: BackendError, places: Sequence[str]) -> None:
    """Raise what a backend says of documents as what is wrong in their files; else as it is."""
    if not error.complaints:
        raise error
    raise WrongJobs(
        [f"{places[each.document]}: {each.line}" for each in error.complaints]
    ) from error


def tell(wrong: WrongJobs) -> int:
    """Tell all that is wrong, and return the exit status."""
    for line in wrong.lines:
        complain(line)
    return 1
