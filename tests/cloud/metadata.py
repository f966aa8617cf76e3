"""The metadata services of three clouds, played by one server; each refuses requests as the real one does."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.message import Message
from typing import Any

from tests.servers.answering import answering

Json = dict[str, Any]

MACHINE = "gpu-pool_3"
"""The name by which Azure knows this machine."""


@dataclass
class Played:
    """The answers of the services, which a test changes at any time."""

    address: str = ""
    spot: Json | None = None
    scheduled: list[Json] = field(default_factory=list)
    preempted: str = "FALSE"
    maintenance: str = "NONE"
    events: list[Json] = field(default_factory=list)
    fault: str = ""
    """An illness of all answers: hangs, garbage, huge, or a status."""
    tokens: set[str] = field(default_factory=set)
    paths: list[str] = field(default_factory=list)
    over: threading.Event = field(default_factory=threading.Event)

    def answer(self, method: str, path: str, headers: Message) -> tuple[int, bytes]:
        self.paths.append(path)
        if self.fault == "hangs":
            self.over.wait()
        status, text = self._answer(method, path, headers)
        sick = {"garbage": b"\0\xff{", "huge": b"x" * (1 << 20)}
        return int(self.fault) if self.fault.isdigit() else status, sick.get(
            self.fault, text.encode()
        )

    def _answer(self, method: str, path: str, headers: Message) -> tuple[int, str]:
        if path.startswith("/latest/"):
            return self._answer_aws(method, path, headers)
        if path.startswith("/computeMetadata/v1/instance/"):
            named = {"preempted": self.preempted, "maintenance-event": self.maintenance}
            is_asked = headers.get("Metadata-Flavor") == "Google"
            return (200, named[path.rpartition("/")[2]]) if is_asked else (403, "")
        if headers.get("Metadata") != "true" or "api-version=" not in path:
            return 400, ""
        if path.startswith("/metadata/instance/compute/name"):
            return 200, MACHINE
        return 200, json.dumps({"DocumentIncarnation": 1, "Events": self.events})

    def _answer_aws(self, method: str, path: str, headers: Message) -> tuple[int, str]:
        if path == "/latest/api/token":
            if method != "PUT" or not headers.get("X-aws-ec2-metadata-token-ttl-seconds"):
                return 400, ""
            self.tokens.add(token := f"token-{len(self.paths)}")
            return 200, token
        if headers.get("X-aws-ec2-metadata-token") not in self.tokens:
            return 401, ""
        there = {"events/maintenance/scheduled": json.dumps(self.scheduled)}
        if self.spot is not None:
            there["spot/instance-action"] = json.dumps(self.spot)
        text = there.get(path.removeprefix("/latest/meta-data/"))
        return (404, "") if text is None else (200, text)


@contextmanager
def played_cloud() -> Iterator[Played]:
    played = Played()
    with answering(played.answer) as port:
        played.address = f"http://127.0.0.1:{port}"
        yield played
        played.over.set()


def spot(seconds: float, *, action: str = "terminate") -> Json:
    """Announce the interruption of a spot machine of AWS at a time since the epoch."""
    return {"action": action, "time": f"{datetime.fromtimestamp(seconds, UTC):%FT%TZ}"}


def scheduled(code: str, not_before: str, *, state: str = "active") -> Json:
    return {"Code": code, "State": state, "EventId": "i-1", "NotBefore": not_before}


def azure_event(kind: str, not_before: str, *machines: str, status: str = "Scheduled") -> Json:
    return {
        "EventId": "602d9444-d2cd-49c7-8624-8643e7171297",
        "EventType": kind,
        "ResourceType": "VirtualMachine",
        "Resources": list(machines or (MACHINE,)),
        "EventStatus": status,
        "NotBefore": not_before,
    }
