"""
The documents of job files, of the files in folders, and of standard input.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from dljob.client.backend import BackendError, Json

KIND = "DLJob"
STDIN = "-"


class Source(NamedTuple):
    """A document and its place in a file."""

    file: str
    document: Any
    find_line: Callable[[str], int] | None = None
    """Maps the path of a field to its line; ``None`` without a file."""

    @property
    def place(self) -> str:
        """``FILE:LINE`` of the document."""
        return self.at("")

    def at(self, path: str) -> str:
        """``FILE:LINE`` of a field."""
        return self.file if self.find_line is None else f"{self.file}:{self.find_line(path)}"


class WrongJobs(Exception):
    """Job files are wrong, so nothing was submitted; ``lines`` has all problems."""

    def __init__(self, lines: Sequence[str]) -> None:
        super().__init__("\n".join(lines))
        self.lines = tuple(lines)


def iter_sources(name: str) -> Iterator[Source]:
    """Yield the documents of a file, of a folder, or of standard input."""
    from dljob.sim.errors import BadInput  # noqa: PLC0415
    from dljob.sim.inputs import yamlfiles  # noqa: PLC0415 - not for --help, nor for completion

    if name == STDIN:
        found = [("stdin", yamlfiles.read_placed(sys.stdin, "stdin"))]
    else:
        paths = yamlfiles.find_files(Path(name))
        found = [(str(path), yamlfiles.load_placed(path)) for path in paths]
    for file, documents in found:
        there = [each for each in documents if each.content is not None]
        if not there:
            raise BadInput(file, "holds no DLJob", remedy="put at least one DLJob into it")
        for each in there:
            yield from _iter_items(Source(file, each.content, each.find_line))


def _iter_items(source: Source) -> Iterator[Source]:
    """Yield the items of a list, as ``dljob get -o yaml`` prints it."""
    content = source.document
    if isinstance(content, dict) and content.get("kind") == "DLJobList":
        items = content.get("items")
        for number, item in enumerate(items if isinstance(items, list) else ()):
            yield Source(source.file, item, _below(source, f"items[{number}]"))
    else:
        yield source


def _below(source: Source, prefix: str) -> Callable[[str], int] | None:
    find = source.find_line
    if find is None:
        return None
    return lambda path: find(f"{prefix}.{path}" if path else prefix)


def check(sources: Sequence[Source]) -> list[Json]:
    """Return the documents; raise :class:`WrongJobs` with all their problems."""
    from dljob.core.documents import jobfile  # noqa: PLC0415 - takes longer to load than to do the rest

    lines: list[str] = []
    for source in sources:
        try:
            jobfile.parse(source.document, require_template=True)
        except jobfile.JobFileError as error:
            lines += [each.line(source.at(each.path)) for each in error.problems]
    if lines:
        raise WrongJobs(lines)
    return [source.document for source in sources]


def refuse(error: BackendError, sources: Sequence[Source]) -> NoReturn:
    """Raise the complaints of a backend with the places in the files; any other error unchanged."""
    if not error.complaints:
        raise error
    raise WrongJobs(
        [f"{sources[each.document].at(each.path)}: {each.line}" for each in error.complaints]
    ) from error
