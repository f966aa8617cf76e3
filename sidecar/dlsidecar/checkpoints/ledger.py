"""
Keeps the knowledge about a job's checkpoints over all its starts, in a file beside them.

One small file, because nothing else outlives the container, the pod and the node as the checkpoints
do. It says what the last one looked like, which one was confirmed and not tried yet, which ones could
not be read, and so whether this job's confirmations are trusted. A file with any other
content, or one that cannot be read, counts as nothing known.
"""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import dataclass

from dlsidecar.checkpoints.checkpoint_files import LEDGER
from dlsidecar.checkpoints.recognizing.shapes import Shape
from dlwire.training import Saving

MOST_FAILED = 16
LARGEST_BYTES = 1 << 20


@dataclass(frozen=True)
class Ledger:
    """The content of the file."""

    shape: Shape | None = None
    """How the checkpoint looked that was seen complete last."""
    pending: str | None = None
    """The one that was confirmed before a stop and that no start has read since."""
    since_ns: int = 0
    """When its first file was written."""
    source: str = ""
    """The checkpoint that the latest start goes on from."""
    fruitless: int = 0
    """How many starts in a row failed from there before their first step."""
    failed: tuple[str, ...] = ()
    """Checkpoints that were confirmed, or seemed complete, and could not be read."""
    is_trusted: bool = True

    def with_failed(self, unit: str) -> tuple[str, ...]:
        return (*(one for one in self.failed if one != unit), unit)[-MOST_FAILED:]


def describe_signs(saving: Saving) -> str:
    """Name the way in which checkpoints are confirmed; each way has a trust of its own."""
    return f"{saving.complete.value} {saving.files} {saving.marker} {saving.settle_seconds}"


def read_ledger(saving: Saving) -> Ledger:
    try:
        with open(f"{saving.path}/{LEDGER}", "rb") as file:  # noqa: PTH123 - beside os.open below
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
        )
    except (OSError, ValueError, KeyError, TypeError):
        return Ledger()


def write_ledger(saving: Saving, ledger: Ledger) -> None:
    """Replace the file; where that is not possible, the job goes on without it."""
    document = {
        "signs": describe_signs(saving),
        "shape": None if ledger.shape is None else ledger.shape.render(),
        "pending": ledger.pending,
        "since": ledger.since_ns,
        "source": ledger.source,
        "fruitless": ledger.fruitless,
        "failed": list(ledger.failed),
        "trusted": ledger.is_trusted,
    }
    made = f"{saving.path}/{LEDGER}.tmp"
    with contextlib.suppress(OSError):
        with open(made, "w", encoding="utf-8") as file:  # noqa: PTH123
            json.dump(document, file)
        os.replace(made, f"{saving.path}/{LEDGER}")  # noqa: PTH105
