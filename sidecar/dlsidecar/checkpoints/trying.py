"""
Measures a trial of a checkpoint in the SideCar itself.

:mod:`dlsidecar.behaviour.machine` knows that one is under way and how it went. This module notes how far the training
was when it was asked, how long it took, and whether the training went on after it: some programs save
themselves and end, and some stand still.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Callable

from dlsidecar.behaviour.state import Machine
from dlwire.messages import Saving, Trial

SOON_SECONDS = 30.0
"""A training that ends so soon after its trial, and has not gone on meanwhile, ended by it."""


class Trials:
    """The latest trial of the latest start."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._trial = Trial()
        """As the machine had it when it was seen last."""
        self._asked_at = 0.0
        self._iteration = 0
        """The latest reported iteration when the trial was asked for."""
        self._over_at = 0.0
        self._iteration_then = 0
        """The latest reported iteration when its outcome was known."""
        self._has_ended = False

    def see(self, machine: Machine, iteration: int) -> None:
        """Look at the machine after a step; ``iteration`` is what the training reported last."""
        before, self._trial = self._trial, machine.trial
        if machine.trial.number != before.number:
            self._asked_at, self._iteration, self._has_ended = self._now(), iteration, False
        is_over = machine.trial.number > 0 and machine.trial.saving is not Saving.NONE
        if not is_over:
            return
        if before.number != machine.trial.number or before.saving is Saving.NONE:
            self._over_at, self._iteration_then = self._now(), iteration
        if machine.trial.saving is Saving.FAILED:
            return  # It may not have reached the training, so it is not the reason of an end after it.
        is_by_itself = machine.target == machine.run and not machine.is_leaving
        if machine.ended and is_by_itself and iteration <= self._iteration_then:
            is_soon = self._now() - self._over_at <= SOON_SECONDS
            self._has_ended = self._has_ended or is_soon

    def describe(self, iteration: int) -> Trial:
        """Return the trial with what is known of it beyond the machine."""
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
