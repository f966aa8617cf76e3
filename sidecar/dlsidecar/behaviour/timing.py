"""
Measures the cost of a change of GPUs in the SideCar itself.

The controller predicts from it how long the next change will take. The agent shows the stopwatch each
new machine, and the stopwatch takes the time when the phase changes.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Callable

from dlsidecar.behaviour.state import QUIET, Machine
from dlwire.messages import Change, Phase, Saving


class Stopwatch:
    """The durations of the change under way, and of the one before once it is over."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._phase = Phase.READY
        self._since = now()
        self._running = Change(generation=0)
        self.change: Change | None = None
        """The latest change that is over; None if there was none."""

    def see(self, machine: Machine) -> None:
        """Look at the machine after a step."""
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
        # A quiet phase ends what led there; the start that may follow is a change of its own.
        if machine.phase in QUIET or machine.phase is Phase.RUNNING:
            self.change = replace(self._running, generation=machine.term.generation)
            self._running = Change(generation=0)
