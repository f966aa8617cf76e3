"""The answers to requests that a SideCar did not accept."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from dljob_wire.kinds import OneOf, Text, Whole, wire
from dljob_wire.messages.limits import INCARNATION, INSTALLATION, LONGEST_MESSAGE


class Refused(str, Enum):
    """The reason of a refusal."""

    MALFORMED = "Malformed"
    """The message is invalid."""
    OLDER = "OlderTerm"
    """A newer declaration is known."""
    CONFLICT = "SameTermOtherTarget"
    """The same term was declared with other contents."""
    OTHER_INCARNATION = "OtherIncarnation"
    """The message was for another start of this container."""
    OTHER_INSTALLATION = "OtherInstallation"
    """Another installation of DLJob commands this container."""
    LEAVING = "Leaving"
    NOT_AUTHORIZED = "NotAuthorized"
    """The client has no permission."""
    NOT_FOUND = "NotFound"
    NOT_ALLOWED = "MethodNotAllowed"
    TOO_SLOW = "TooSlow"
    TOO_LARGE = "TooLarge"
    TOO_MANY = "TooManyWaiting"
    BROKEN = "InternalError"
    """A fault of the SideCar, which does not affect the training."""


@dataclass(frozen=True)
class Refusal:
    """The answer to a refused request."""

    error: Refused = field(metadata=wire(OneOf(Refused)))
    message: str = field(metadata=wire(Text(4096)))
    incarnation: str = field(metadata=wire(INCARNATION))
    path: str = field(default="", metadata=wire(Text(1024)))
    """The path of the invalid value in the message."""
    remedy: str = field(default="", metadata=wire(Text(LONGEST_MESSAGE)))
    epoch: int = field(default=0, metadata=wire(Whole()))
    generation: int = field(default=0, metadata=wire(Whole()))
    """Together with the epoch: the highest known term."""
    installation: str = field(default="", metadata=wire(INSTALLATION))
    """The installation of DLJob to which that term belongs."""
