"""
The environment of a training beyond ranks and GPUs: ``dljob.training`` and its variables.

:mod:`dljob_sidecar.assembling` adds the variables of all starts, :mod:`dljob_sidecar.processes.supervising`
the agreement of one start's ranks. A program may ignore all of them.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path

from dljob_wire.checkpoints import Complete
from dljob_wire.training import Training

MODULES = Path(__file__).parents[1] / "importable"
"""The folder with only the package ``dljob``, also inside the SideCar's archive."""
AGREEMENT = "DLJOB_AGREEMENT"


def offer(environment: Mapping[str, str], training: Training) -> dict[str, str]:
    """Add the variables of :mod:`dljob.training`, without replacing the user's."""
    saving = training.checkpoint
    offered = {
        "DLJOB_CHECKPOINT_DIR": saving.path,
        "DLJOB_CHECKPOINT_SIGNAL": saving.signal,
        "DLJOB_CHECKPOINT_MARKER": saving.marker_file if saving.complete is Complete.MARKER else "",
        "DLJOB_PROGRESS_FILE": training.progress.file,
    }
    given = {name: value for name, value in offered.items() if value}
    # Append the folder, so the user's own entries take precedence.
    path = ":".join(filter(None, (environment.get("PYTHONPATH"), str(MODULES))))
    return {**given, **environment, "PYTHONPATH": path}


class RankAgreement:
    """
    Shared memory in which the ranks of one start agree on the step to save at.

    The memory has no name in a file system, because an image may have no writable one. The ranks
    open it through ``/proc``; it ends with the SideCar.
    """

    def __init__(self) -> None:
        self._file = -1
        self.variables: dict[str, str] = {}
        """The variables that name the memory for the ranks; empty if there is none."""

    def renew(self) -> None:
        """Clear what the ranks of the previous start wrote."""
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
