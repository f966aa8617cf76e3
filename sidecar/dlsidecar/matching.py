"""
The user's regular expression, run in a process of its own.

This file is not imported: its source is handed to ``python -c``, so that it works from a folder
and from inside an archive. It imports nothing of ours.

On standard input come blocks: four bytes of length and as many bytes of output. A length of
zero says that something was left out in between. For each block one line of JSON is answered,
a list of what matched: an expression that backtracks for ever shows itself by not answering.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from re import Pattern
from typing import BinaryIO

LONGEST_LINE = 4096


def read_exactly(stream: BinaryIO, count: int) -> bytes | None:
    data = stream.read(count)
    return data if len(data) == count else None


def read_blocks(source: BinaryIO) -> Iterator[bytes]:
    """Yield the blocks; an empty one stands for a gap."""
    while True:
        head = read_exactly(source, 4)
        block = head and read_exactly(source, int.from_bytes(head, "big"))
        if block is None:
            return
        yield block


class Lines:
    """Makes whole lines of blocks."""

    def __init__(self) -> None:
        self._rest = b""
        self._is_cut = False

    def take(self, block: bytes) -> list[bytes]:
        """Return the lines that are complete now; what a gap has cut in two is left out."""
        if not block:
            self._rest, self._is_cut = b"", True
            return []
        # A progress bar ends its lines with a carriage return.
        *lines, rest = (self._rest + block).replace(b"\r", b"\n").split(b"\n")
        if self._is_cut and lines:
            del lines[0]
            self._is_cut = False
        self._rest = rest[:LONGEST_LINE]
        return lines


def match_lines(
    expression: Pattern[str] | None, confirm: Pattern[str] | None, lines: list[bytes]
) -> list[dict[str, str]]:
    """Return what the lines say: the groups of the expression, and whether a checkpoint is done."""
    found = []
    for raw in lines:
        line = raw[:LONGEST_LINE].decode("utf-8", "replace")
        match = expression.search(line) if expression else None
        if match:
            found.append({k: v for k, v in match.groupdict().items() if v is not None})
        if confirm and confirm.search(line):
            found.append({"confirmed": line[:200]})
    return found


def main(progress: str, confirm: str) -> None:
    expressions = [re.compile(text) if text else None for text in (progress, confirm)]
    lines = Lines()
    for block in read_blocks(sys.stdin.buffer):
        found = match_lines(expressions[0], expressions[1], lines.take(block))
        sys.stdout.write(json.dumps(found) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
