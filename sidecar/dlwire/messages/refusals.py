"""The answers to what a SideCar did not accept."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from dlwire.kinds import OneOf, Text, Whole, wire
from dlwire.messages.limits import INCARNATION, INSTALLATION, LONGEST_MESSAGE


class Refused(str, Enum):
    """Why something was not accepted."""

    MALFORMED = "Malformed"
    """It is no message, or a wrong one."""
    OLDER = "OlderTerm"
    """A newer declaration is known."""
    CONFLICT = "SameTermOtherTarget"
    """The same term was declared with other contents."""
    OTHER_INCARNATION = "OtherIncarnation"
    """It was meant for another start of this container."""
    OTHER_INSTALLATION = "OtherInstallation"
    """Another installation of DLJob commands this container."""
    LEAVING = "Leaving"
    """The SideCar is about to end."""
    NOT_AUTHORIZED = "NotAuthorized"
    """The client may not do this."""
    NOT_FOUND = "NotFound"
    NOT_ALLOWED = "MethodNotAllowed"
    TOO_SLOW = "TooSlow"
    TOO_LARGE = "TooLarge"
    TOO_MANY = "TooManyWaiting"
    BROKEN = "InternalError"
    """A fault of ours; the training is not touched by it."""


@dataclass(frozen=True)
class Refusal:
    """The answer to what was not accepted."""

    error: Refused = field(metadata=wire(OneOf(Refused)))
    message: str = field(metadata=wire(Text(4096)))
    incarnation: str = field(metadata=wire(INCARNATION))
    path: str = field(default="", metadata=wire(Text(1024)))
    """Where in the message the wrong value stands."""
    remedy: str = field(default="", metadata=wire(Text(LONGEST_MESSAGE)))
    epoch: int = field(default=0, metadata=wire(Whole()))
    generation: int = field(default=0, metadata=wire(Whole()))
    """With the epoch: the highest term seen."""
    installation: str = field(default="", metadata=wire(INSTALLATION))
    """The installation of DLJob in which that term counts."""
