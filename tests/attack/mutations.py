"""Documents and texts, changed at random as an attacker does; the same for the same seed."""

import copy
import datetime as dt
import math
import random
from typing import Any

DEEP = 300


def nested(depth: int) -> Any:
    value: Any = 0
    for number in range(depth):
        value = {"a": value} if number % 2 else [value]
    return value


def endless() -> Any:
    value: list[Any] = []
    value.append({"again": value})
    return value


TEXTS = (
    *(
        "",
        " ",
        "\0",
        "\n",
        "a\nb",
        "\x1b]0;owned\x07",
        "\x1b[2J",
        "\u202etxt.exe",
        "\u2066",
        "\x9b2J",
    ),
    *(
        "\ud800",
        "é" * 300,
        "a" * 5_000,
        "-",
        ".",
        "..",
        "/",
        "../../etc",
        "=",
        "$(A)",
        "$$",
        "%s",
        "{}",
    ),
    *("1e999999", "0x10", "1_000", "\u0661", "NaN", "inf", "null", "true", "2026-13-45T99:99:99Z"),
    *(
        "[" * 500,
        "(?P<iteration>" * 50,
        "(a+)+$",
        "[!-\U0010ffff]" * 50,
        "(?i)" * 10,
        "\\",
        "*",
        "{" * 400,
    ),
)
NUMBERS = (
    0,
    -1,
    1,
    2**31,
    2**53,
    2**63,
    -(2**63),
    10**400,
    0.5,
    -0.0,
    1e308,
    math.inf,
    -math.inf,
    math.nan,
)
ODDITIES: tuple[Any, ...] = (
    *(None, True, False, [], {}, [[]], {"": 1}, {1: 2}, {None: 0}, {"a": {"b": "c"}}, [None] * 40),
    *(dt.date(2026, 1, 1), b"\0\xff", ("a", 1), frozenset({1}), object),
)


def pick(chance: random.Random) -> Any:
    """Draw an unexpected value."""
    kind = chance.randrange(20)
    if kind < 8:
        return chance.choice(TEXTS)
    if kind < 13:
        return chance.choice(NUMBERS)
    if kind == 13:
        return nested(chance.choice((10, 70, DEEP)))
    if kind == 14:
        return [chance.choice(TEXTS)] * chance.choice((2, 100, 3_000))
    if kind == 15:
        return endless()
    return copy.copy(chance.choice(ODDITIES))


def mutated(document: Any, chance: random.Random) -> Any:
    """Return a copy of a document with a few unexpected things in it."""
    changed = copy.deepcopy(document)
    for _ in range(chance.choice((1, 1, 1, 2, 3, 8))):
        places = list(_places(changed))
        if not places or chance.random() < 0.01:
            return pick(chance)
        _change(*chance.choice(places), chance)
    return changed


def _places(document: Any) -> list[tuple[Any, Any]]:
    """Name everything inside a document, as what holds it and where there."""
    places: list[tuple[Any, Any]] = []
    stack, seen = [document], {id(document)}
    while stack and len(places) < 2_000:
        holder = stack.pop()
        keys = (
            list(holder)
            if isinstance(holder, dict)
            else range(len(holder))
            if isinstance(holder, list)
            else ()
        )
        for key in keys:
            places.append((holder, key))
            if id(holder[key]) not in seen:
                seen.add(id(holder[key]))
                stack.append(holder[key])
    return places


def _change(holder: Any, key: Any, chance: random.Random) -> None:
    kind = chance.randrange(10)
    if kind < 6:
        holder[key] = pick(chance)
    elif kind == 6:
        del holder[key]
    elif kind == 7 and isinstance(holder, dict):
        name = pick(chance)
        holder[name if isinstance(name, str | int | float | None) else str(name)[:50]] = holder.pop(
            key
        )
    elif kind == 8 and isinstance(holder, list):
        holder += [holder[key]] * chance.choice((1, 10, 300))
    else:
        value = holder[key]
        if isinstance(value, str):
            holder[key] = garbled(value, chance)
        elif isinstance(value, int | float) and not isinstance(value, bool):
            holder[key] = chance.choice((-value, value + 1, value * 1000, str(value)))


def garbled(text: str, chance: random.Random) -> str:
    """Return a text with some pieces of it changed, doubled, cut out or mixed up."""
    for _ in range(chance.choice((1, 1, 1, 2, 3))):
        at, to = sorted(chance.randrange(len(text) + 1) for _ in range(2))
        piece = chance.choice(
            (
                "",
                chr(
                    chance.choice(
                        (0, 7, 9, 10, 13, 27, 34, 39, 44, 58, 91, 123, 0x202E, 0xFEFF, 0x1F600)
                    )
                ),
                str(chance.choice(TEXTS))[:200],
                str(chance.choice(NUMBERS[:7])),
                text[at:to] * 2,
                text[:at][-40:],
            )
        )
        text = text[:at] + piece + text[to if chance.random() < 0.5 else at :]
    return text[:20_000]
