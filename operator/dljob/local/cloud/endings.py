"""
Reads the answers of metadata services: does the cloud announce the end of this machine, and when.

Pure. :mod:`dljob.local.cloud.asking` gets the answers. Each reader raises :class:`Unreadable` for anything that its service
does not document. Events that a training survives are no end: a live migration, a pause of seconds (Azure's Freeze),
maintenance of AWS' network or power, and AWS' recommendation to rebalance.
"""

import email.utils
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Final

AWS_CODES: Final = frozenset(
    {"instance-stop", "instance-retirement", "instance-reboot", "system-reboot"}
)
"""Scheduled events of AWS that end all processes."""
AZURE_TYPES: Final = frozenset({"Preempt", "Terminate", "Reboot", "Redeploy"})
"""Scheduled Events of Azure that end all processes."""
GCP_EVENTS: Final = {
    "NONE": False,
    "MIGRATE_ON_HOST_MAINTENANCE": False,
    "TERMINATE_ON_HOST_MAINTENANCE": True,
}
_ACTION: Final = re.compile(r"[a-z]{1,30}", re.ASCII)


class Cloud(StrEnum):
    """A cloud whose metadata service DLJob can ask."""

    NONE = "none"
    AWS = "aws"
    GCP = "gcp"
    AZURE = "azure"


@dataclass(frozen=True, slots=True, kw_only=True)
class CloudSettings:
    """The notices of the cloud that runs this machine."""

    provider: Cloud = Cloud.NONE
    """The cloud whose metadata service DLJob asks for the end of this machine: none, aws, gcp or azure."""
    address: str = "http://169.254.169.254"
    """The address of the metadata service."""
    lead_seconds: float = 600.0
    """The time before a scheduled stop or reboot at which jobs leave; the end of a spot machine is always nearer."""

    def __post_init__(self) -> None:
        if not self.address.startswith("http://"):
            raise ValueError("the address does not begin with http://")

    @property
    def is_wanted(self) -> bool:
        return self.provider is not Cloud.NONE


class Unreadable(Exception):
    """An answer that the service does not document."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """The announced end of this machine."""

    kind: str
    """The event in the cloud's words, in the form of a label of Kubernetes."""
    at: float | None = None
    """The time; None if the cloud names none."""

    def __str__(self) -> str:
        when = "soon" if self.at is None else f"at {datetime.fromtimestamp(self.at, UTC):%FT%TZ}"
        return f"the cloud ends this machine {when} ({self.kind})"


def choose_ending(endings: Iterable[Ending], now: float, *, lead_seconds: float) -> Ending | None:
    """Return the next end that is less than ``lead_seconds`` away."""
    near = [each for each in endings if each.at is None or each.at - lead_seconds <= now]
    return min(near, key=lambda each: each.at or 0.0, default=None)


def read_instance_action(text: str) -> Ending:
    """Read AWS' ``spot/instance-action``, which exists only while an interruption is announced."""
    document = _parse(text, dict)
    action = _text(document, "action")
    if not _ACTION.fullmatch(action):
        raise Unreadable("its action is not a word")
    return Ending(kind=f"spot-{action}", at=_read_time(_text(document, "time")))


def read_scheduled_events(text: str) -> Iterator[Ending]:
    """Read AWS' ``events/maintenance/scheduled``."""
    for event in _iter_objects(_parse(text, list)):
        code = _text(event, "Code")
        if code in AWS_CODES and _text(event, "State") == "active":
            yield Ending(kind=code, at=_read_time(_text(event, "NotBefore")))


def read_preempted(text: str) -> Iterator[Ending]:
    """Read Google's ``instance/preempted``."""
    if text not in ("TRUE", "FALSE"):
        raise Unreadable("it is neither TRUE nor FALSE")
    if text == "TRUE":
        yield Ending(kind="preempted")


def read_maintenance_event(text: str) -> Iterator[Ending]:
    """Read Google's ``instance/maintenance-event``, which names no time."""
    if text not in GCP_EVENTS:
        raise Unreadable("it is no known event")
    if GCP_EVENTS[text]:
        yield Ending(kind="terminate-on-host-maintenance")


def read_azure_events(text: str, machine: str) -> Iterator[Ending]:
    """Read Azure's Scheduled Events, which name the events of a whole scale set."""
    events = _parse(text, dict).get("Events")
    if not isinstance(events, list):
        raise Unreadable("it has no list of Events")
    for event in _iter_objects(events):
        resources = event.get("Resources")
        if not isinstance(resources, list):
            raise Unreadable("an event has no list of Resources")
        names = [each.casefold() for each in resources if isinstance(each, str)]
        kind = _text(event, "EventType")
        if kind in AZURE_TYPES and machine.casefold() in names:
            yield Ending(kind=kind.lower(), at=_read_time(_text(event, "NotBefore")))


def _parse(text: str, kind: type[Any]) -> Any:
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Unreadable("it is not JSON") from error
    if not isinstance(document, kind):
        raise Unreadable("it is another kind of JSON")
    return document


def _iter_objects(items: Iterable[object]) -> Iterator[Mapping[str, Any]]:
    for item in items:
        if not isinstance(item, dict):
            raise Unreadable("an event is not an object")
        yield item


def _text(event: Mapping[str, Any], name: str) -> str:
    value = event.get(name) or ""
    if not isinstance(value, str):
        raise Unreadable(f"its {name} is not a text")
    return value


def _read_time(text: str) -> float | None:
    """Read a time of ISO 8601 or RFC 5322; None for an event that has begun, which has no time."""
    if not text:
        return None
    for read in (datetime.fromisoformat, email.utils.parsedate_to_datetime):
        try:
            time = read(text)
            return (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()
        except (ValueError, TypeError, OverflowError):
            continue
    raise Unreadable("its time is not a time")
