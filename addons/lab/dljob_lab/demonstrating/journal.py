"""
The events of a demonstration as one log: lines of JSON, from which all results are made.

A line has the time when it was written (``at``, seconds since the epoch), the ``approach``, the ``job`` and
``what`` it is about: ``submitted``, ``decided`` (the controller's record of the decision about the job)
or ``state`` (the report of its SideCar). All that is read from it is in :mod:`dljob_lab.demonstrating.reading`.
"""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dljob.control.situation.ports import PodKey
from dljob.control.situation.status import Status
from dljob.core.model import JobId
from dljob_wire.messages import State

Line = dict[str, Any]


class Journal:
    """Writes the log, and holds it for those who read on."""

    def __init__(self, path: Path, *, clock: Callable[[], float] = time.time) -> None:
        self.path = path
        self.lines: list[Line] = []
        self._clock = clock
        # Buffer by line, so that a reader sees every whole line at once.
        self._file = path.open("a", encoding="utf-8", buffering=1)

    def close(self) -> None:
        """Write nothing more."""
        self._file.close()

    def note_submission(self, approach: str, job: JobId) -> None:
        """A user has submitted a job."""
        self._write(self._clock(), approach, job=job, what="submitted")

    def note_decision(self, approach: str, job: JobId, *, status: Status) -> None:
        """The controller has recorded what the job shall have."""
        placement = status.placement
        self._write(
            self._clock(),
            approach,
            job=job,
            what="decided",
            phase=status.phase.value,
            generation=status.generation,
            gpus=[str(ref) for ref in placement.refs()] if placement is not None else [],
            message=status.message,
        )

    def note_state(self, approach: str, key: PodKey, *, state: State, at: float) -> None:
        """A SideCar has said this."""
        change = state.change
        self._write(
            at,
            approach,
            job=key.job,
            what="state",
            phase=state.phase.value,
            start=state.held_generation,
            gpus=list(state.held),
            iteration=state.progress.iteration,
            begun=state.progress.begun,
            idle=state.progress.idle_seconds,
            speed=state.progress.iterations_per_second,
            change=None
            if change is None
            else {
                "generation": change.generation,
                "checkpoint": change.checkpoint_seconds,
                "stop": change.stop_seconds,
                "start": change.start_seconds,
            },
        )

    def _write(self, at: float, approach: str, *, job: JobId, what: str, **facts: Any) -> None:
        line = {"at": round(at, 4), "approach": approach, "job": job, "what": what, **facts}
        self.lines.append(line)
        self._file.write(json.dumps(line) + "\n")
