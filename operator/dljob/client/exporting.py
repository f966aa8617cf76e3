"""
Where a record is written, and in which format: JSON lines, a trace for Perfetto, or a page for a browser.
"""

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path

from dljob.core.recording.record import Record, encode
from dljob.installed import PAGES, load
from dljob.sim.results import writing


class Format(StrEnum):
    """The formats of a record, by the word that users type."""

    JSONL = "jsonl"
    PERFETTO = "perfetto"
    HTML = "html"


ENDINGS: Mapping[str, Format] = {
    ".pftrace": Format.PERFETTO,
    ".perfetto-trace": Format.PERFETTO,
    ".html": Format.HTML,
    ".htm": Format.HTML,
}
"""Formats by the ending of a file; all other endings mean JSON lines."""


def render(record: Record, form: Format) -> bytes:
    """Write a record in a format."""
    if form is Format.JSONL:
        return "".join(encode(record)).encode()
    exported: bytes = load(PAGES, form, add_on="dljob-web")(record)
    return exported


def write_file(path: Path, record: Record, *, form: Format | None = None) -> None:
    """Write a record to a file, whole or not at all."""
    writing.write_bytes(path, render(record, form or ENDINGS.get(path.suffix, Format.JSONL)))
