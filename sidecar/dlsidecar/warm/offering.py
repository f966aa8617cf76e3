"""
The environment of a training program beyond ranks and GPUs: ``dljob.training``, and the variables that it reads.

:mod:`dlsidecar.assembling` offers what holds for all starts, :mod:`dlsidecar.processes.supervising` the board on which
the ranks of one start agree. A program that does not look at any of it runs as it would without it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path

from dlwire.training import Complete, Training

MODULES = Path(__file__).parents[1] / "importable"
"""Holds the package ``dljob`` and nothing else, also inside the archive that the SideCar is shipped as."""
AGREEMENT = "DLJOB_AGREEMENT"


def offer(environment: Mapping[str, str], training: Training) -> dict[str, str]:
    """Add what :mod:`dljob.training` reads; what the user has set stays as it is."""
    saving = training.checkpoint
    offered = {
        "DLJOB_CHECKPOINT_DIR": saving.path,
        "DLJOB_CHECKPOINT_SIGNAL": saving.signal,
        "DLJOB_CHECKPOINT_MARKER": saving.marker if saving.complete is Complete.MARKER else "",
        "DLJOB_PROGRESS_FILE": training.progress_file,
    }
    given = {name: value for name, value in offered.items() if value}
    # At the end: the user's own entries are found before it.
    path = ":".join(filter(None, (environment.get("PYTHONPATH"), str(MODULES))))
    return {**given, **environment, "PYTHONPATH": path}


class RankAgreement:
    """
    A few bytes of memory that the ranks of one start share, by whose help they save at the same step.

    It has no name in any file system, because an image may have none that can be written to. The ranks
    open it through ``/proc``; it ends with the SideCar.
    """

    def __init__(self) -> None:
        self._file = -1
        self.variables: dict[str, str] = {}
        """By which the ranks of the latest start find it; nothing where there is no such memory."""

    def renew(self) -> None:
        """Forget what the ranks of the former start wrote."""
        self.close()
        create = getattr(os, "memfd_create", None)
        if create is not None:
            with contextlib.suppress(OSError):
                self._file = create("dljob-agreement")
        if self._file >= 0:
            self.variables = {AGREEMENT: f"/proc/{os.getpid()}/fd/{self._file}"}

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
            self.variables = {}
