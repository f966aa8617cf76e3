"""The answers to requests that a SideCar did not accept."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from dljob_wire.kinds import OneOf, Said, Whole, declare
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

    error: Refused = declare(OneOf(Refused))
    message: str = declare(Said(4096))
    incarnation: str = declare(INCARNATION)
    path: str = declare(Said(1024), "")
    """The path of the invalid value in the message."""
    remedy: str = declare(Said(LONGEST_MESSAGE), "")
    epoch: int = declare(Whole(), 0)
    generation: int = declare(Whole(), 0)
    """Together with the epoch: the highest known term."""
    installation: str = declare(INSTALLATION, "")
    """The installation of DLJob to which that term belongs."""
