"""Dependencies of the connections to SideCars: the listener, the clock, randomness, and metrics."""

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from dljob.control.situation.ports import PodKey
from dljob_wire.kinds import LARGEST_WHOLE


class Meter(Protocol):
    def polled(self) -> None:
        """Count a poll of a SideCar."""

    def told(self, seconds: float) -> None:
        """Count an answered declaration, with the time from sending it to the answer."""

    def failed(self) -> None:
        """Count a request without an answer to a SideCar that has answered before and is not leaving."""


class NoMeter(Meter):
    """Counts nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """The listener for news from SideCars, and the sources of time and randomness."""

    heard: Callable[[PodKey, bool], None]
    """Called for each changed contact; true if more than progress has changed."""
    epoch: int = LARGEST_WHOLE
    """The epoch of this leader.

    A report of a SideCar that obeys a later epoch raises a doubt only. A container must not end a
    controller: only the recorded leader counts.
    """
    installation: str = ""
    """The id of the installation of DLJob, sent with commands; empty if unknown."""
    meter: Meter = NoMeter()
    clock: Callable[[], float] = time.time
    chance: Callable[[], float] = random.random
    """Returns a random number from 0 to below 1."""
