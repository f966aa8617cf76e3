"""
Keeps the known facts about a job's checkpoints over its starts, in a file next to them.

The file lies there because only the checkpoints outlive the container, the pod and the node. It
records the last shape, the checkpoint that was confirmed but not read yet, and the ones that could
not be read, which decide whether confirmations are trusted. A file that is unreadable or has other
content counts as empty.
"""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import dataclass

from dljob_sidecar.checkpoints.checkpoint_files import LEDGER
from dljob_sidecar.checkpoints.recognizing.shapes import Shape
from dljob_wire.checkpoints import Checkpoint

MOST_FAILED = 16
LARGEST_BYTES = 1 << 20


@dataclass(frozen=True)
class Ledger:
    """The content of the file."""

    shape: Shape | None = None
    """The shape of the last checkpoint that was seen complete."""
    pending: str | None = None
    """The checkpoint that was confirmed before a stop and that no start has read since."""
    since_ns: int = 0
    """The time at which its first file was written."""
    source: str = ""
    """The checkpoint that the latest start resumed from."""
    fruitless: int = 0
    """The number of consecutive starts from there that failed before their first step."""
    failed: tuple[str, ...] = ()
    """Checkpoints that were confirmed, or seemed complete, and could not be read."""
    is_trusted: bool = True
    restless: frozenset[str] = frozenset()
    """The names without numbers of files that never rest, and so belong to no checkpoint."""


def describe_signs(saving: Checkpoint) -> str:
    """Return the name of the confirmation method; each method has its own trust."""
    return f"{saving.complete.value} {saving.files} {saving.marker_file} {saving.settle_seconds}"


def read_ledger(saving: Checkpoint) -> Ledger:
    try:
        with open(f"{saving.path}/{LEDGER}", "rb") as file:  # noqa: PTH123 - as os.open below
            document = json.loads(file.read(LARGEST_BYTES))
        if document["signs"] != describe_signs(saving):
            return Ledger()
        pending = document["pending"]
        return Ledger(
            shape=Shape.parse(document["shape"]),
            pending=None if pending is None else str(pending),
            since_ns=int(document["since"]),
            source=str(document["source"]),
            fruitless=int(document["fruitless"]),
            failed=tuple(map(str, document["failed"])),
            is_trusted=bool(document["trusted"]),
            restless=frozenset(map(str, document.get("restless", ()))),
        )
    except (OSError, ValueError, KeyError, TypeError):
        return Ledger()


def write_ledger(saving: Checkpoint, ledger: Ledger) -> None:
    """Replace the file; on failure, the job continues without it."""
    document = {
        "signs": describe_signs(saving),
        "shape": None if ledger.shape is None else ledger.shape.render(),
        "pending": ledger.pending,
        "since": ledger.since_ns,
        "source": ledger.source,
        "fruitless": ledger.fruitless,
        "failed": list(ledger.failed),
        "trusted": ledger.is_trusted,
        "restless": sorted(ledger.restless),
    }
    made = f"{saving.path}/{LEDGER}.tmp"
    with contextlib.suppress(OSError):
        with open(made, "w", encoding="utf-8") as file:  # noqa: PTH123
            json.dump(document, file)
        os.replace(made, f"{saving.path}/{LEDGER}")  # noqa: PTH105
