"""Everything around the connections to SideCars: the listener, the clock, chance, and the counts for metrics."""

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from dlcontrol.situation.ports import PodKey
from dlwire.kinds import LARGEST_WHOLE


class Meter(Protocol):
    """The part that counts, for the metrics."""

    def polled(self) -> None:
        """A SideCar was asked for news."""

    def told(self, seconds: float) -> None:
        """Count an answered declaration, with the time from sending it to the answer."""

    def failed(self) -> None:
        """A request had no answer; the SideCar is dialled again."""


class NoMeter:
    """Counts nothing."""

    def polled(self) -> None:
        """See :class:`Meter`."""

    def told(self, seconds: float) -> None:
        """See :class:`Meter`."""

    def failed(self) -> None:
        """See :class:`Meter`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """The receivers of the SideCars' news, and where time and chance come from."""

    heard: Callable[[PodKey, bool], None]
    """Another contact than before; true if that is more than progress."""
    epoch: int = LARGEST_WHOLE
    """
    The epoch in which we lead. The report of a SideCar that obeys a later one is no news but a doubt.

    A container is a witness, and must not end a controller: only the record of the leader says which one leads.
    """
    installation: str = ""
    """The id of the installation of DLJob that commands; nothing says it if it is empty."""
    meter: Meter = NoMeter()
    clock: Callable[[], float] = time.time
    """The clock of the times in a contact."""
    chance: Callable[[], float] = random.random
    """From 0 to below 1."""
