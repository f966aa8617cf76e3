"""
How data is written for programs: JSON and YAML.
"""

import json
import math
from collections.abc import Mapping
from typing import Any

from dljob.cli.output.streams import harmless


def to_json(value: Any) -> str:
    """Indented JSON. A number that does not exist (NaN) becomes null."""
    return json.dumps(without_nan(value), indent=2, allow_nan=False, ensure_ascii=False) + "\n"


def to_json_line(value: Any) -> str:
    """JSON on one line, for streams of documents."""
    return json.dumps(without_nan(value), allow_nan=False, ensure_ascii=False) + "\n"


def to_yaml(value: Any) -> str:
    """YAML in the order of the document."""
    import yaml  # noqa: PLC0415 - most verbs need none

    text = yaml.safe_dump(value, sort_keys=False, allow_unicode=True, width=100)
    if harmless(text, keeps="\n\t") == text:
        return text
    # Only quoted texts can escape control characters.
    return yaml.safe_dump(value, sort_keys=False, allow_unicode=False, width=100)


def without_nan(value: Any) -> Any:
    """Return the data with null for each number that JSON does not have: NaN and the infinities."""
    if isinstance(value, Mapping):
        return {key: without_nan(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [without_nan(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
