"""
Results on disk: one line of JSON each, added as they come.

:mod:`dljob_lab.verbs.compare` opens one for ``--resume`` and looks there before it plays anything, so that a
comparison which was interrupted goes on where it stopped. A line that was half written when the
machine went down is not read, and its simulation is played again. Several comparisons may share a
journal, since a result is known by a key that holds everything that determines it.
"""

import json
from pathlib import Path
from typing import Any, Self, TextIO

from dljob.sim.errors import BadInput
from dljob_lab.comparing.tasks import Values


class Journal:
    """The results of earlier runs, and a file to which new ones are added."""

    def __init__(self, known: dict[str, Values], file: TextIO) -> None:
        self._known = known
        self._file = file

    @classmethod
    def open(cls, path: Path) -> Self:
        """Open a journal, which begins empty where there is none."""
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            text = path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
            file = path.open("a", encoding="utf-8")
        except OSError as error:
            message = f"cannot be written ({error.strerror or error})"
            raise BadInput(path, message, remedy="name a file for --resume") from error
        known = dict(filter(None, map(_parse, text.splitlines())))
        if text and not known:
            file.close()
            raise BadInput(path, "holds no results", remedy="name another file for --resume")
        if text and not text.endswith("\n"):
            # The rest of a line that was never finished must not become the head of the next one.
            file.write("\n")
        return cls(known, file)

    def find(self, key: str) -> Values | None:
        """Find the result with this key."""
        return self._known.get(key)

    def add(self, key: str, values: Values) -> None:
        """Add a result, which is on its way to the disk when this returns."""
        self._known[key] = values
        self._file.write(json.dumps({"key": key, "values": values}) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _parse(line: str) -> tuple[str, Values] | None:
    try:
        entry: Any = json.loads(line)
    except ValueError:
        return None
    if not isinstance(entry, dict):
        return None
    key, values = entry.get("key"), entry.get("values")
    return (key, values) if isinstance(key, str) and isinstance(values, dict) else None
