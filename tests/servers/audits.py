"""The audit log of an API server, read while it is written."""

import json
from pathlib import Path
from typing import Any


def read_events(log: Path) -> list[dict[str, Any]]:
    """The events of all whole lines; the last line may be half written."""
    return [json.loads(line) for line in log.read_text(encoding="utf-8").split("\n")[:-1]]
