"""
Parsing of users' regular expressions, without compiling them.

Compiling an expression can take seconds: a set such as ``[!-\\U0010ffff]`` costs time for each character in
it, and an expression of 1,000 characters can hold a hundred such sets. Parsing takes less than a hundredth of a
second. So the controller parses expressions here and bounds the cost of compiling them. The SideCar's helper
compiles them, in a process of its own whose processor time is limited.
"""

import re
import re._constants as opcodes  # type: ignore[import-not-found]
import re._parser as parser  # type: ignore[import-not-found]
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, Final

LONGEST: Final = 1024
MOST_CHARACTERS: Final = 1_200_000
"""In all ranges of all sets together: one range over all of Unicode, and some more."""
DEEPEST: Final = 100

_LOOKS: Final = frozenset({opcodes.ASSERT, opcodes.ASSERT_NOT})


class WrongExpression(ValueError):
    """An expression cannot be compiled in a bounded time; the message says why, and begins with the verb."""


@lru_cache(maxsize=1024)
def find_groups(text: str) -> frozenset[str]:
    """Name the groups of an expression; raises :class:`WrongExpression`."""
    if len(text) > LONGEST:
        raise WrongExpression(f"has more than {LONGEST:,} characters")
    try:
        parsed = parser.parse(text)
        _bound(parsed)
    except (re.error, OverflowError, RecursionError) as error:
        raise WrongExpression(f"is not a regular expression of Python ({error})") from error
    return frozenset(parsed.state.groupdict)


def _bound(parsed: Any) -> None:
    """Refuse an expression that takes long to compile, or that Python refuses only when it compiles."""
    stack, characters = [(parsed, 0)], 0
    while stack:
        pattern, depth = stack.pop()
        if depth > DEEPEST:
            raise WrongExpression(f"has groups that are nested more than {DEEPEST} levels deep")
        for code, argument in pattern.data:
            characters += _count_in_ranges(code, argument)
            if code in _LOOKS:
                _insist_on_width(*argument)
            stack += [(inner, depth + 1) for inner in _iter_patterns(argument)]
        if characters > MOST_CHARACTERS:
            raise WrongExpression(
                f"takes too long to compile: the ranges of its sets, such as [a-z], hold more than"
                f" {MOST_CHARACTERS:,} characters together"
            )


def _count_in_ranges(code: Any, argument: Any) -> int:
    if code is not opcodes.IN:
        return 0
    return sum(bounds[1] - bounds[0] + 1 for each, bounds in argument if each is opcodes.RANGE)


def _insist_on_width(direction: int, pattern: Any) -> None:
    shortest, longest = pattern.getwidth()
    if direction < 0 and shortest != longest:
        raise re.error("look-behind requires fixed-width pattern")


def _iter_patterns(argument: Any) -> Iterator[Any]:
    """Yield the patterns inside the argument of a code, which may be a tuple or a list."""
    parts = [argument]
    while parts:
        part = parts.pop()
        if isinstance(part, parser.SubPattern):
            yield part
        elif isinstance(part, tuple | list):
            parts += part
