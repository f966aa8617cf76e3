"""
Where what is printed goes.

Standard output holds data and nothing else, so that programs can read it. A library in C may print to it
past Python, as the solver HiGHS does now and then under the policy ``sia``.

Trainings and other users' job files are the source of much of the output. So all of it passes
:class:`HarmlessStream`, which lets through colours and nothing else that a terminal would obey. A verb that draws
on a screen of its own asks for the stream below it (:func:`raw`), and cleans its text itself.
"""

import io
import os
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TextIO

from dljob_wire.harmless import HARMFUL

_COLOUR = re.compile(r"(\x1b\[(?:(?:[0-4]|2[2-4]|3[1-79]|49|9[0-7])(?:;(?=\d)|(?=m)))*m)")
"""Bold, dim, underlined, a colour of text, and an end of these; not black, hidden, or a background."""


@contextmanager
def divert_libraries() -> Iterator[None]:
    """Redirect output of C libraries from standard output to standard error."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)


def harmless(text: str, *, keeps: str = "") -> str:
    """Escape control characters as in JSON, except those in ``keeps``."""
    if text.isprintable():
        return text
    return HARMFUL.sub(
        lambda found: found[0] if found[0] in keeps else f"\\u{ord(found[0]):04x}", text
    )


class HarmlessStream(io.TextIOWrapper):
    """A text stream that escapes control characters, except line ends and colours."""

    def __init__(self, below: TextIO) -> None:
        super().__init__(
            below.buffer,
            encoding=below.encoding,
            errors=below.errors,
            line_buffering=below.isatty(),
        )
        self.below = below

    def write(self, text: str, /) -> int:
        super().write(harmless_output(text))
        return len(text)


def harmless_output(text: str) -> str:
    """Escape control characters, except line ends, tabs and colours."""
    if "\x1b" not in text:
        return harmless(text, keeps="\n\t")
    parts = _COLOUR.split(text)
    return "".join(
        part if place % 2 else harmless(part, keeps="\n\t") for place, part in enumerate(parts)
    )


def guard_output() -> None:
    """Replace standard output and error by harmless streams."""
    sys.stdout.flush()
    sys.stdout, sys.stderr = HarmlessStream(sys.stdout), HarmlessStream(sys.stderr)


def raw(stream: TextIO) -> TextIO:
    """Return the underlying stream, for drawing on a screen."""
    return stream.below if isinstance(stream, HarmlessStream) else stream


def harmless_document(document: Any) -> Any:
    """Escape control characters in all texts of a document."""
    if isinstance(document, str):
        return harmless(document)
    if isinstance(document, Mapping):
        return {harmless_document(name): harmless_document(each) for name, each in document.items()}
    return (
        [harmless_document(each) for each in document] if isinstance(document, list) else document
    )
