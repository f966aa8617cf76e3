"""The values that the interface returns, read from the documents of the backends."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from dljob.client.turns import show_plan


class Notice(UserWarning):
    """A field of a job has no effect in the place where it was submitted."""


@dataclass(frozen=True, slots=True)
class Event:
    """An event or a decision of the history of a job."""

    at: datetime
    job: str
    reason: str
    message: str
    is_warning: bool = False

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> "Event":
        """Read an event, or an entry of the history, whose kind is its reason."""
        return cls(
            at=datetime.fromisoformat(document["at"]),
            job=document["job"],
            reason=document.get("reason") or document.get("kind", ""),
            message=document["message"],
            is_warning=document.get("type") == "Warning",
        )


@dataclass(frozen=True, slots=True)
class Explanation:
    """The reason of the state of a job; ``str()`` is the sentence."""

    job: str
    message: str
    assumptions: tuple[str, ...] = ()
    """Assumptions of the policy about the job, where its profile is not known."""

    def __str__(self) -> str:
        return self.message


@dataclass(frozen=True, slots=True)
class Plan:
    """The effects of a submission; ``str()`` is the text that the command prints."""

    effects: tuple[dict[str, Any], ...]
    """A document for each affected job: ``job``, ``submitted``, ``message`` and more."""
    notices: tuple[str, ...] = ()
    tells_others: bool = True
    """True if the effects on all other jobs are known; on a cluster only the operator knows them."""

    def __str__(self) -> str:
        return show_plan(self.effects, tells_others=self.tells_others)
