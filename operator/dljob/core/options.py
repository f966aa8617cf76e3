"""
The options of a policy.

A policy declares each option as a field of its class, with the range of its values::

    ageing: float = declare(0.3, at_least=0.0, at_most=2.0)

and calls :func:`check` when it is made. Numbers are always finite. Options that are true or false
need no declaration. The refusals, ``dljob policies`` and the tests follow from the
declarations.
"""

import dataclasses
import math
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from dljob_wire import kinds
from dljob_wire.kinds import METADATA_KEY, Flag, Json, Kind, Number, OneOf, Refuse, Whole


class Rising(Number):
    """Numbers of which each is larger than the one before, as a tuple."""

    def read(self, value: Any, path: str, *, refuse: Refuse) -> Any:
        if not isinstance(value, tuple) or not value:
            return refuse(path, value, "it is no tuple of numbers", f"give {self.allowed}")
        read = [super(Rising, self).read(each, path, refuse=refuse) for each in value]
        if None not in read and not all(a < b for a, b in pairwise(read)):
            refuse(path, value, "the numbers do not rise", f"give {self.allowed}")
        return value

    def from_text(self, text: str) -> Any:
        return tuple(map(float, text.split(",")))

    @property
    def allowed(self) -> str:
        numbers = super().allowed.replace("a number", "rising numbers")
        return f"{numbers}, as in {','.join(f'{number:g}' for number in self.default)}"

    def keywords(self) -> Json:
        return {"type": "array", "items": super().keywords()}


def declare(
    default: Any,
    *,
    at_least: float | None = None,
    above: float | None = None,
    at_most: float | None = None,
    below: float | None = None,
    words: tuple[str, ...] = (),
) -> Any:
    """Declare an option with its default and its range."""
    lowest = above if at_least is None else at_least
    highest = below if at_most is None else at_most
    bounds: dict[str, Any] = {
        "minimum": -math.inf if lowest is None else lowest,
        "maximum": math.inf if highest is None else highest,
        "above": above is not None,
        "below": below is not None,
    }
    kind: Kind
    match default:
        case bool():
            kind = Flag()
        case int():
            kind = Whole(**bounds)
        case float():
            kind = Number(**bounds)
        case tuple():
            kind = Rising(**bounds, default=default)
        case _:
            kind = OneOf(words)
    if kind.collect(default)[1]:
        raise TypeError(f"the default {default!r} is not allowed; write {kind.allowed}")
    return kinds.declare(kind, default)


def rules_of(policy: Any) -> Mapping[str, Kind]:
    """Return the kind of each option of a policy. ``policy`` is its class or an instance."""
    return {each.name: _rule_of(policy, each) for each in dataclasses.fields(policy)}


def _rule_of(policy: Any, declared: "dataclasses.Field[Any]") -> Kind:
    kind: Kind | None = declared.metadata.get(METADATA_KEY)
    if kind is None and isinstance(declared.default, bool):
        return Flag()
    if kind is None:
        raise TypeError(f"{policy.name}: say with declare() what {declared.name} may be")
    return kind


def read(name: str, key: str, kind: Kind, text: str) -> Any:
    """Read an option of the policy ``name``. A :class:`ValueError` says which values are allowed."""
    try:
        return kind.parse(kind.from_text(text))
    except ValueError:
        raise _refusal(name, key, kind, text) from None


def check(policy: Any) -> None:
    """Refuse a policy whose options are out of range, however it was made."""
    for key, kind in rules_of(policy).items():
        value = getattr(policy, key)
        if kind.collect(value)[1]:
            raise _refusal(policy.name, key, kind, value)


def _refusal(name: str, key: str, kind: Kind, value: object) -> ValueError:
    return ValueError(f"{name}: {key} cannot be {value!r}; write {kind.allowed}")
