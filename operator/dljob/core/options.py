"""
The options of a policy.

A policy declares each option as a field of its class, with the range of its values::

    ageing: float = declare(0.3, at_least=0.0, at_most=2.0)

and calls :func:`check` when it is made. Numbers are always finite. Options that are true or false
need no declaration. The refusals, ``dljob policies`` and the tests follow from the declarations.
"""

import dataclasses
import math
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

_KEY = "dljob.rule"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """The range of a number; ``above`` and ``below`` themselves are out of range."""

    at_least: float | None = None
    above: float | None = None
    at_most: float | None = None
    below: float | None = None

    def hold(self, number: float) -> bool:
        """Return true for a finite number within the bounds."""
        return (
            -math.inf < number < math.inf
            and (self.at_least is None or number >= self.at_least)
            and (self.above is None or number > self.above)
            and (self.at_most is None or number <= self.at_most)
            and (self.below is None or number < self.below)
        )

    def __str__(self) -> str:
        """Say it as people do: ``from 0 to 2``, ``above 0``, ``of at least 0 and below 1``."""
        if self.at_least is not None and self.at_most is not None:
            return f" from {_write(self.at_least)} to {_write(self.at_most)}"
        parts = [
            f"{words} {_write(bound)}"
            for words, bound in (
                ("of at least", self.at_least),
                ("above", self.above),
                ("of at most", self.at_most),
                ("below", self.below),
            )
            if bound is not None
        ]
        return f" {' and '.join(parts)}" if parts else ""


def _write(number: float) -> str:
    return f"{number:,.0f}" if number == round(number) else f"{number:g}"


@dataclasses.dataclass(frozen=True, slots=True)
class Rule:
    """The rule for the values of an option, which have the type of its default."""

    default: Any
    bounds: Bounds = Bounds()
    words: tuple[str, ...] = ()

    @property
    def allowed(self) -> str:
        """The values that are allowed, for people."""
        match self.default:
            case bool():
                return "true or false"
            case int():
                return f"a whole number{self.bounds}"
            case float():
                return f"a number{self.bounds}"
            case tuple():
                example = ",".join(f"{number:g}" for number in self.default)
                return f"rising numbers{self.bounds}, as in {example}"
            case _:
                return " or ".join(self.words)

    def parse(self, text: str) -> Any:
        """Read a value as users write it. Raises :class:`ValueError` if it is of the wrong kind."""
        match self.default:
            case bool():
                return {"true": True, "false": False}.get(text)
            case int():
                return int(text)
            case float():
                return float(text)
            case tuple():
                return tuple(map(float, text.split(",")))
            case _:
                return text

    def accepts(self, value: object) -> bool:
        """Return true for a value of the right kind and in range."""
        match self.default:
            case bool():
                return isinstance(value, bool)
            case int():
                return type(value) is int and self.bounds.hold(value)
            case float():
                return self._is_number(value)
            case tuple():
                return (
                    isinstance(value, tuple)
                    and value != ()
                    and all(map(self._is_number, value))
                    and all(a < b for a, b in pairwise(value))
                )
            case _:
                return value in self.words

    def _is_number(self, value: object) -> bool:
        # A boolean is an int in Python, and a mistake here.
        if isinstance(value, bool) or not isinstance(value, int | float):
            return False
        return self.bounds.hold(value)


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
    bounds = Bounds(at_least=at_least, above=above, at_most=at_most, below=below)
    rule = Rule(default, bounds, words)
    if not rule.accepts(default):
        raise TypeError(f"the default {default!r} is not allowed; write {rule.allowed}")
    return dataclasses.field(default=default, metadata={_KEY: rule})


def rules_of(policy: Any) -> Mapping[str, Rule]:
    """Return the rule for each option of a policy. ``policy`` is its class or an instance."""
    return {each.name: _rule_of(policy, each) for each in dataclasses.fields(policy)}


def _rule_of(policy: Any, declared: "dataclasses.Field[Any]") -> Rule:
    rule: Rule | None = declared.metadata.get(_KEY)
    if rule is None and isinstance(declared.default, bool):
        return Rule(declared.default)
    if rule is None:
        raise TypeError(f"{policy.name}: say with declare() what {declared.name} may be")
    return rule


def read(name: str, key: str, rule: Rule, text: str) -> Any:
    """Read an option of the policy ``name``. A :class:`ValueError` says which values are allowed."""
    try:
        value = rule.parse(text)
    except ValueError:
        raise _refusal(name, key, rule, text) from None
    if not rule.accepts(value):
        raise _refusal(name, key, rule, text)
    return value


def check(policy: Any) -> None:
    """Refuse a policy whose options are out of range, however it was made."""
    for key, rule in rules_of(policy).items():
        value = getattr(policy, key)
        if not rule.accepts(value):
            raise _refusal(policy.name, key, rule, value)


def _refusal(name: str, key: str, rule: Rule, value: object) -> ValueError:
    return ValueError(f"{name}: {key} cannot be {value!r}; write {rule.allowed}")
