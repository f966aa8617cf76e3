"""
Measures the cost of a change of GPUs in the SideCar.

The controller predicts the duration of the next change from it. The agent passes each new machine
to the stopwatch, which records the time of phase changes.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Callable

from dljob_sidecar.behaviour.state import QUIET, Machine
from dljob_wire.messages import Change, Phase, Saving


class Stopwatch:
    """The durations of the current change and of the last complete one."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._phase = Phase.READY
        self._since = now()
        self._running = Change(generation=0)
        self.change: Change | None = None
        """The last complete change; None if there was none."""

    def see(self, machine: Machine) -> None:
        """Update from the machine after a step."""
        if machine.phase is self._phase:
            return
        now = self._now()
        before, self._phase = self._phase, machine.phase
        seconds, self._since = now - self._since, now
        if before is Phase.CHECKPOINTING:
            self._running = replace(self._running, checkpoint_seconds=seconds)
        elif before is Phase.STOPPING:
            saving = machine.saving or Saving.NONE
            self._running = replace(self._running, stop_seconds=seconds, saving=saving)
        elif before is Phase.STARTING and machine.phase is Phase.RUNNING:
            self._running = replace(self._running, start_seconds=seconds)
        # A quiet phase ends a change; the start that may follow is a change of its own.
        if machine.phase in QUIET or machine.phase is Phase.RUNNING:
            self.change = replace(self._running, generation=machine.term.generation)
            self._running = Change(generation=0)
