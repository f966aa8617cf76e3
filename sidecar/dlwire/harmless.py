"""Text that others wrote, shown so that it harms no terminal and no log."""

from __future__ import annotations

import re

HARMFUL = re.compile(
    # Controls but the tab, marks that turn the direction of writing, separators of lines, and halves
    # of characters, which cannot be written as UTF-8.
    "[\x00-\x08\x0a-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)


_REPLACEMENT = "\ufffd"


def harmless(text: str) -> str:
    """
    Replace what a terminal or a browser would obey instead of showing it, or no file can hold.

    The text comes from a training or its container, and is shown to people and written to stores.
    """
    if text.isascii() and text.isprintable():
        return text
    return HARMFUL.sub(lambda found: " " if found[0] in "\n\r" else _REPLACEMENT, text)
