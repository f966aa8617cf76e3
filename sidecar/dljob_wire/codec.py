"""
Converts messages to JSON and back, for both sides.

Unknown fields are ignored, so either side may be newer. For any other invalid bytes the reader
raises :class:`~dljob_wire.kinds.Wrong`, and no other exception.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from dljob_wire.kinds import Kind, Wrong, nested
from dljob_wire.messages import LONGEST_LEFT, METRICS, TARGET, Post, State, Target

VERSION = "v1"
"""The first part of every path; later additions keep it."""

Message = TypeVar("Message")


def encode(message: object) -> bytes:
    """Return a message as one line of JSON."""
    kind: type = type(message)
    return _encoded(nested(kind), message)


def encode_target(target: Target) -> bytes:
    return _encoded(TARGET, target)


def decode(kind: type[Message], body: bytes) -> Message:
    """Parse a message of the given type, or raise :class:`~dljob_wire.kinds.Wrong`."""
    declared: type = kind
    message = nested(declared).parse(parse(body))
    assert isinstance(message, kind)
    return message


def decode_post(body: bytes) -> Post:
    """
    Parse a training's report, without invalid metrics.

    A loss that is NaN, or an invalid name, must not cost the iteration in the same report.
    """
    document = _parsed(body, constant=float)
    metrics = document.get("metrics") if isinstance(document, dict) else None
    if isinstance(metrics, dict):
        document = {**document, "metrics": METRICS.read_good(metrics)}
    post = nested(Post).parse(document)
    assert isinstance(post, Post)
    return post


def decode_target(body: bytes) -> Target:
    target: Target = TARGET.parse(parse(body))
    return target


def encode_left(state: State) -> bytes:
    """Return the state that a SideCar leaves behind as one short line, without absent fields."""
    plain = nested(State).write(state.left_behind())
    said = {name: value for name, value in plain.items() if value is not None}
    return _dumped(said) + b"\n"


def decode_left(text: bytes) -> State | None:
    """Parse the state that a SideCar left behind; None if the text is something else."""
    try:
        return decode(State, text[:LONGEST_LEFT].partition(b"\n")[0]).left_behind()
    except Wrong:
        return None


def parse(body: bytes) -> Any:
    """Parse JSON strictly: UTF-8, unique keys, no NaN, limited depth and length of numbers."""
    return _parsed(body, constant=_no_constant)


def _parsed(body: bytes, *, constant: Callable[[str], Any]) -> Any:
    try:
        return json.loads(body.decode("utf-8"), object_pairs_hook=_once, parse_constant=constant)
    except UnicodeDecodeError as error:
        raise Wrong("", None, "is not UTF-8", "write JSON in UTF-8") from error
    except RecursionError as error:
        raise Wrong("", None, "is nested too deep", "write a message of this protocol") from error
    except Wrong:
        raise
    except ValueError as error:
        raise Wrong("", None, f"is not JSON: {error}"[:300], "write one JSON object") from error


def _encoded(kind: Kind, message: object) -> bytes:
    return _dumped(kind.write(message))


def _dumped(plain: object) -> bytes:
    # NaN is no JSON; a NaN in a message is a bug, which tests find.
    return json.dumps(plain, allow_nan=False, separators=(",", ":")).encode("ascii")


def _once(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    # Refuse equal keys, because two readers may choose different ones.
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise Wrong(name[:80], value, "appears twice", "write each field once")
        found[name] = value
    return found


def _no_constant(name: str) -> Any:
    raise Wrong("", name, "is not a number in JSON", "leave the field out")
