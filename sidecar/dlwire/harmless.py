"""
Texts of others made harmless before a terminal or a browser shows them.

What a training or a job file says reaches terminals. Control characters there move the cursor, retitle the
window or write its clipboard, and bidirectional ones show text in another order than it has. They are
shown by their numbers instead, in the form that JSON has for them.
"""

from __future__ import annotations

import re

_DANGEROUS = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)


def harmless(text: str, *, keeps: str = "") -> str:
    """Return a text with no character in it that does anything; of those, ``keeps`` stay."""
    if text.isprintable():
        return text
    return _DANGEROUS.sub(lambda match: match[0] if match[0] in keeps else _shown(match[0]), text)


def _shown(character: str) -> str:
    return f"\\u{ord(character):04x}"
