"""Makes text of other programs harmless for terminals and logs."""

from __future__ import annotations

import re

HARMFUL = re.compile(
    # Controls except the tab, direction marks, line separators, and surrogates, which cannot be
    # encoded as UTF-8.
    "[\x00-\x08\x0a-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)


_REPLACEMENT = "\ufffd"


def harmless(text: str) -> str:
    """
    Replace characters that a terminal or a browser would interpret, or that no file can hold.

    The text comes from a training or its container, and is shown to people and written to stores.
    """
    if text.isascii() and text.isprintable():
        return text
    return HARMFUL.sub(lambda found: " " if found[0] in "\n\r" else _REPLACEMENT, text)
