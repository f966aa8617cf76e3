"""
Runs the user's regular expressions in a process of their own.

The SideCar passes the source of this file to ``python -c``, so that it works from a folder and from
inside an archive. This file imports nothing of the SideCar; the SideCar imports its constants.

Standard input has blocks: four bytes of length, one byte for the stream, and the output. A length of
zero marks a gap. The process answers each block with one line of JSON, the list of matches; an
expression that backtracks forever does not answer. For an invalid expression, the process writes the
reason as a string, and ends.
"""

from __future__ import annotations

import io
import json
import re
import sys
from collections.abc import Iterator
from re import Pattern

LONGEST_LINE = 4096
STREAMS = 2
"""Output and error output: each has its own lines, which may come in pieces."""
CONFIRMED = "checkpoint confirmed"
UNMATCHED = "no line matched"
"""
No group of an expression can have such a name. The second comes with the last line that did not
match the progress expression, as long as no line has matched.
"""
LONGEST_SHOWN = 200
RANK = re.compile(rb"rank (\d{1,6}) \| ")
"""The prefix of a rank's line, which expressions do not see."""


def read_exactly(stream: io.BufferedReader, count: int) -> bytes | None:
    data = stream.read(count)
    return data if len(data) == count else None


def read_blocks(source: io.BufferedReader) -> Iterator[tuple[int, bytes]]:
    """Yield the number of the stream and the block; an empty block marks a gap."""
    while True:
        head = read_exactly(source, 5)
        block = head and read_exactly(source, int.from_bytes(head[:4], "big"))
        if head is None or block is None:
            return
        yield head[4], block


class Lines:
    """Joins blocks into complete lines."""

    def __init__(self) -> None:
        self._rest = b""
        self._is_cut = False

    def take(self, block: bytes) -> list[bytes]:
        """Return the lines that are now complete, without lines that a gap has cut."""
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


def strip_rank(line: bytes) -> bytes:
    """Return a line without the rank."""
    signed = RANK.match(line)
    return line[signed.end() :] if signed else line


def match_lines(
    expression: Pattern[str] | None, confirm: Pattern[str] | None, *, lines: list[bytes]
) -> list[dict[str, str]]:
    """
    Return the groups in the lines, and the confirmation of a checkpoint.

    Of several matches with the same groups, only the last is kept, and the one before a counter begins again.
    """
    found: dict[tuple[int, tuple[str, ...]], dict[str, str]] = {}
    rounds = 0
    for raw in lines:
        line = raw[:LONGEST_LINE].decode("utf-8", "replace")
        match = expression.search(line) if expression else None
        said = [match.groupdict()] if match else []
        if confirm and confirm.search(line):
            said.append({CONFIRMED: line[:LONGEST_SHOWN]})
        for groups in said:
            known = {name: value for name, value in groups.items() if value is not None}
            rounds += _begins_again(found.get((rounds, tuple(known)), {}), known)
            # Reinsert the match, so the order is that of the last matches.
            found.pop((rounds, tuple(known)), None)
            found[rounds, tuple(known)] = known
    return list(found.values())


def _begins_again(before: dict[str, str], known: dict[str, str]) -> bool:
    """Return whether the iteration has fallen to less than half, as that of a bar for each epoch does."""
    former, present = before.get("iteration", ""), known.get("iteration", "")
    both = former + present
    if not (former and present and both.isascii() and both.isdigit() and len(both) < 40):
        return False
    return int(present) < int(former) / 2


class UnmatchedLines:
    """Records whether the progress expression has matched in the life of this helper."""

    def __init__(self, expression: Pattern[str] | None) -> None:
        self._has_matched = expression is None

    def find(self, lines: list[bytes], found: list[dict[str, str]]) -> list[dict[str, str]]:
        """Return the last line with text, as long as no line has matched."""
        self._has_matched = self._has_matched or any(CONFIRMED not in each for each in found)
        written = [line for line in lines if line.strip()]
        if self._has_matched or not written:
            return []
        line = written[-1][:LONGEST_LINE].decode("utf-8", "replace")
        return [{UNMATCHED: line.strip()[:LONGEST_SHOWN]}]


def compile_expression(text: str) -> Pattern[str] | None:
    """Compile an expression; raise ValueError with the reason on failure."""
    try:
        return re.compile(text) if text else None
    except (re.error, RecursionError, OverflowError, MemoryError) as error:
        reason = str(error) or type(error).__name__
        raise ValueError(f"the expression {text!r} cannot be compiled: {reason}") from error


def answer(what: object) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


def main(progress: str, confirm: str) -> None:
    try:
        expressions = [compile_expression(text) for text in (progress, confirm)]
    except ValueError as error:
        answer(str(error))
        return
    streams = [Lines() for _ in range(STREAMS)]
    unmatched = UnmatchedLines(expressions[0])
    for stream, block in read_blocks(open(0, "rb")):  # noqa: SIM115 - it ends with the process
        lines = [strip_rank(line) for line in streams[stream].take(block)]
        found = match_lines(expressions[0], expressions[1], lines=lines)
        answer([*found, *unmatched.find(lines, found)])


if __name__ == "__main__":
    main(*sys.argv[1:])
