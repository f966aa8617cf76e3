"""Label selectors in kubectl's syntax: ``team=vision,tier!=batch,gpu in (a100, h100),!draft``."""

import re
from collections.abc import Callable, Mapping
from typing import NamedTuple

from dljob.core.forms import LABEL_KEY

Labels = Mapping[str, str]

REMEDY = "write such as team=vision,tier!=batch,gpu in (a100,h100),!draft"

# Spaces around a part are stripped later: matching them here would take cubic time.
_PART = re.compile(r"((?:[^,(]|\([^)]*\))*)(?:,|$)")
_SET = re.compile(r"(\S+)\s+(in|notin)\s*\(([^)]*)\)")
_EQUAL = re.compile(r"([^!=\s]+)\s*(!=|==|=)\s*([^=!\s]*)")
_THERE = re.compile(r"(!?)\s*([^!=\s]+)")


class SelectorError(ValueError):
    """The text is not a selector: the reason and the remedy."""


class Requirement(NamedTuple):
    key: str
    holds: Callable[[str | None], bool]
    """Says if a label with this value matches; ``None``: there is no such label."""


class Selector(NamedTuple):
    """Requirements that must all hold."""

    requirements: tuple[Requirement, ...] = ()

    def selects(self, labels: Labels) -> bool:
        return all(each.holds(labels.get(each.key)) for each in self.requirements)


def parse(text: str) -> Selector:
    """Read a selector; an empty one selects everything. Raises :class:`SelectorError`."""
    requirements = []
    position = 0
    while position < len(text):
        part = _PART.match(text, position)
        if part is None or not part[1].strip():
            raise SelectorError(f'"{text}" is not a selector; {REMEDY}')
        requirements.append(_requirement(part[1].strip()))
        position = part.end()
    return Selector(tuple(requirements))


def _requirement(text: str) -> Requirement:
    if found := _SET.fullmatch(text):
        values = frozenset(value.strip() for value in found[3].split(","))
        if found[2] == "in":
            return Requirement(_key(found[1], text), lambda value: value in values)
        return Requirement(_key(found[1], text), lambda value: value not in values)
    if found := _EQUAL.fullmatch(text):
        wanted = found[3]
        if found[2] == "!=":
            return Requirement(_key(found[1], text), lambda value: value != wanted)
        return Requirement(_key(found[1], text), lambda value: value == wanted)
    if found := _THERE.fullmatch(text):
        if found[1]:
            return Requirement(_key(found[2], text), lambda value: value is None)
        return Requirement(_key(found[2], text), lambda value: value is not None)
    raise SelectorError(f'"{text}" is not a part of a selector; {REMEDY}')


def _key(key: str, text: str) -> str:
    if not LABEL_KEY.matches(key):
        raise SelectorError(f'"{key}" in "{text}" is not the name of a label; {REMEDY}')
    return key
