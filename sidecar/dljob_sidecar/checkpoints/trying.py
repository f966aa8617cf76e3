"""
Measures a trial of a checkpoint in the SideCar.

:mod:`dljob_sidecar.behaviour.machine` has the state and outcome of a trial. This module records the
progress at the request, the duration, and whether the training continued: some programs save
themselves and end, and some hang.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Callable

from dljob_sidecar.behaviour.state import Machine
from dljob_wire.messages import Saving, Trial

SOON_SECONDS = 30.0
"""A training that ends this soon after its trial without continuing ended because of it."""


class Trials:
    """The latest trial of the latest start."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._trial = Trial()
        """The trial in the machine at the last call."""
        self._asked_at = 0.0
        self._iteration = 0
        """The latest reported iteration when the trial was requested."""
        self._over_at = 0.0
        self._iteration_then = 0
        """The latest reported iteration at the outcome."""
        self._has_ended = False

    def see(self, machine: Machine, iteration: int) -> None:
        """Update from the machine after a step; ``iteration`` is the last reported one."""
        before, self._trial = self._trial, machine.trial
        if machine.trial.number != before.number:
            self._asked_at, self._iteration, self._has_ended = self._now(), iteration, False
        is_over = machine.trial.number > 0 and machine.trial.saving is not Saving.NONE
        if not is_over:
            return
        if before.number != machine.trial.number or before.saving is Saving.NONE:
            self._over_at, self._iteration_then = self._now(), iteration
        if machine.trial.saving is Saving.FAILED:
            return  # The request may not have reached the training, so it explains no later end.
        is_by_itself = machine.target == machine.run and not machine.is_leaving
        if machine.ended and is_by_itself and iteration <= self._iteration_then:
            is_soon = self._now() - self._over_at <= SOON_SECONDS
            self._has_ended = self._has_ended or is_soon

    def describe(self, iteration: int) -> Trial:
        """Return the trial with the facts that the machine lacks."""
        trial = self._trial
        if not trial.number:
            return trial
        is_over = trial.saving is not Saving.NONE
        return replace(
            trial,
            iteration=self._iteration,
            seconds=max(0.0, self._over_at - self._asked_at) if is_over else 0.0,
            went_on=is_over and iteration > self._iteration_then,
            ended=trial.ended or self._has_ended,
        )
