"""
The nodes of a schema that have parts: lists, records, and the rules between the fields of a record.

:mod:`dljob.core.documents.language.schemas` has the other nodes.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from dljob.core.documents.language.schemas import Form, Json, Node, Text
from dljob.core.problems import (
    MAX_PROBLEMS,
    Problem,
    foreign_values,
    join,
    listed,
    nearest,
    plain,
    shown,
)
from dljob_wire.kinds import snake


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A condition over several fields of a record."""

    name: str
    reads: tuple[str, ...]
    """The fields that the rule reads. It is not evaluated while one of them is wrong."""
    at: str = ""
    """The field to blame; empty for the record as a whole."""
    message: str
    """A sentence without its subject, which is the value or the name of the field to blame."""
    remedy: str
    holds: Callable[[Mapping[str, Any]], bool]
    cel: str = ""
    """The same condition in the Common Expression Language, if it can express it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Many(Node):
    """A list."""

    items: Node
    max_items: int
    min_items: int = 0
    unique: bool = False
    """True if no item may occur twice."""
    key: str = ""
    """The field that identifies each item."""

    def problems(self, value: Any, path: str) -> Iterator[Problem]:
        if not isinstance(value, list):
            yield self._not_a_list(value, path)
        elif not self.min_items <= len(value) <= self.max_items:
            too = f"it has {len(value)} items"
            bounds = f"give from {self.min_items} to {self.max_items} items"
            if not value:
                too, bounds = "the list is empty", self.remedy or "give at least one item"
            yield Problem(path, value, too, bounds)
        else:
            for index, item in enumerate(value):
                yield from self.items.problems(item, f"{path}[{index}]")
            yield from self._repetitions(value, path)

    def _not_a_list(self, value: object, path: str) -> Problem:
        alone = any(self.items.problems(value, path))
        remedy = "give a list" if alone else f"write [{shown(value)}]"
        return self.wrong_type(value, path, wanted="a list", remedy=self.remedy or remedy)

    def _repetitions(self, value: list[Any], path: str) -> Iterator[Problem]:
        if self.unique:
            for index, item in enumerate(value):
                if item in value[:index]:
                    again = f"{shown(item)} is in the list twice"
                    yield Problem(f"{path}[{index}]", item, again, "remove one of them")
        if self.key:
            names: set[str] = set()
            for index, item in enumerate(value):
                name = item.get(self.key) if isinstance(item, Mapping) else None
                if not isinstance(name, str):
                    continue
                if name in names:
                    where = join(f"{path}[{index}]", self.key)
                    taken = f"{shown(name)} is the name of an earlier entry"
                    yield Problem(where, name, taken, "give each entry a name of its own")
                names.add(name)

    def completed(self, value: Any) -> Any:
        if not isinstance(value, list):
            return value
        return [self.items.completed(item) for item in value]

    def without_defaults(self, value: Any) -> Any:
        return [self.items.without_defaults(item) for item in value]

    def read(self, value: Any) -> Any:
        return tuple(map(self.items.read, value))

    def write(self, value: Any) -> Any:
        return list(map(self.items.write, value))

    def keywords(self) -> Json:
        identity: Json = {"x-kubernetes-list-type": "set" if self.unique else "atomic"}
        if self.key:
            identity = {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": [self.key]}
        least = {"minItems": self.min_items} if self.min_items else {}
        return {
            "type": "array",
            **least,
            "maxItems": self.max_items,
            **identity,
            "items": self.items.openapi(),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Words(Node):
    """A mapping from names of the user's choice to strings, such as labels and annotations."""

    keys: Form
    values: Text
    max_items: int
    own: str = ""
    """Of names that begin with this, only those in ``known`` may be given."""
    known: Mapping[str, Text] = field(default_factory=dict)

    def problems(self, value: Any, path: str) -> Iterator[Problem]:
        if not isinstance(value, Mapping):
            yield self.wrong_type(
                value, path, wanted="a mapping", remedy="write one name: value a line"
            )
            return
        if len(value) > self.max_items:
            yield Problem(
                path, value, f"it has {len(value)} entries", f"give at most {self.max_items}"
            )
            return
        for key, text in value.items():
            yield from self._entry_problems(key, text, join(path, key))

    def _entry_problems(self, key: object, text: Any, where: str) -> Iterator[Problem]:
        if not isinstance(key, str):
            yield self.wrong_type(key, where, wanted="a string", remedy="write it in quotes")
        elif not self.keys.matches(key):
            complaint = f"{shown(key)} {self.keys.complaint}"
            yield Problem(where, key, complaint, self.keys.remedy(key))
        elif self.own and key.startswith(self.own) and key not in self.known:
            yield _unknown(key, text, where, self.known)
        else:
            yield from self.known.get(key, self.values).problems(text, where)

    def keywords(self) -> Json:
        return {
            "type": "object",
            "maxProperties": self.max_items,
            "additionalProperties": self.values.openapi(),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Record(Node):
    """A mapping with known fields."""

    fields: Mapping[str, Node] = field(default_factory=dict)
    rules: tuple[Rule, ...] = ()
    open: bool = False
    """True if there may be other fields, which are kept and not checked."""
    noun: str = ""
    """The subject of sentences about an item of a list."""
    into: Callable[..., Any] | None = None
    """Makes the program's value of the given attributes; ``None``: the document itself is the value."""

    def problems(self, value: Any, path: str) -> Iterator[Problem]:
        if not isinstance(value, Mapping):
            remedy = (
                self.remedy or f"give its fields: {listed(tuple(self.fields) or ('any',), 'and')}"
            )
            yield self.wrong_type(value, path, wanted="a mapping", remedy=remedy)
            return
        broken: set[str] = set()
        for key, inner in value.items():
            found = list(islice(self._field_problems(key, inner, path), MAX_PROBLEMS))
            if found:
                # A misspelt field is not reported as missing, too.
                broken |= {key, nearest(str(key), self.fields)}
            yield from found
        for name, node in self.fields.items():
            if node.required and name not in value and name not in broken:
                broken.add(name)
                yield Problem(join(path, name), None, "it is missing", node.remedy or "add it")
        yield from self._broken_rules(value, path, broken)

    def _field_problems(self, key: object, value: Any, path: str) -> Iterator[Problem]:
        where = join(path, key)
        if not isinstance(key, str):
            yield self.wrong_type(key, where, wanted="a field name", remedy="write it in quotes")
        elif key in self.fields:
            yield from self.fields[key].problems(value, where)
        elif self.open:
            yield from foreign_values(value, where)
        else:
            yield _unknown(key, value, where, self.fields)

    def _broken_rules(
        self, value: Mapping[str, Any], path: str, broken: set[str]
    ) -> Iterator[Problem]:
        for rule in self.rules:
            if broken.isdisjoint(rule.reads) and not rule.holds(value):
                blamed = value.get(rule.at) if rule.at else value
                where = join(path, rule.at) if rule.at else path
                subject = "it" if isinstance(blamed, Mapping | list | None) else shown(blamed)
                yield Problem(where, blamed, f"{subject} {rule.message}", rule.remedy)

    def completed(self, value: Any) -> Any:
        if not isinstance(value, Mapping):
            return value
        # An empty field counts as absent, as it does for Kubernetes.
        given = {
            name: self.fields[name].completed(inner) if name in self.fields else inner
            for name, inner in value.items()
            if inner is not None or name not in self.fields
        }
        added = {
            name: node.completed(plain(node.default))
            for name, node in self.fields.items()
            if name not in given and node.default is not None
        }
        return given | added

    def without_defaults(self, value: Any) -> Any:
        stripped = {
            name: self.fields[name].without_defaults(inner) if name in self.fields else inner
            for name, inner in value.items()
        }
        return {
            name: inner
            for name, inner in stripped.items()
            if name not in self.fields or inner != self.fields[name].default
        }

    def read(self, value: Any) -> Any:
        if self.into is None:
            return value
        given = ((name, node) for name, node in self.fields.items() if name in value)
        return self.into(
            **{attribute_of(name, node): node.read(value[name]) for name, node in given}
        )

    def write(self, value: Any) -> Any:
        if self.into is None:
            return plain(value)
        held = {
            name: getattr(value, attribute_of(name, node)) for name, node in self.fields.items()
        }
        written = {
            name: self.fields[name].write(each) for name, each in held.items() if each is not None
        }
        return without_none(**written)

    def keywords(self) -> Json:
        keywords: Json = {"type": "object"}
        if self.open:
            keywords["x-kubernetes-preserve-unknown-fields"] = True
        if required := [name for name, node in self.fields.items() if node.required]:
            keywords["required"] = required
        if self.fields:
            keywords["properties"] = {name: node.openapi() for name, node in self.fields.items()}
        if rules := [self._validation(rule) for rule in self.rules if rule.cel]:
            keywords["x-kubernetes-validations"] = rules
        return keywords

    def _validation(self, rule: Rule) -> Json:
        where = {"fieldPath": f".{rule.at}"} if rule.at else {}
        message = f"{rule.at or self.noun or 'it'} {rule.message}; {rule.remedy}"
        return {"rule": rule.cel, "message": message, **where}


def attribute_of(name: str, node: Node) -> str:
    return node.attribute or snake(name)


def without_none(**fields: Any) -> Json:
    """Keep the fields that have a value, zero and false included."""
    return {name: value for name, value in fields.items() if value or value == 0}


def _unknown(name: str, value: object, where: str, known: Mapping[str, Node]) -> Problem:
    guess = nearest(name, known)
    remedy = f"did you mean {guess}?" if guess else f"the fields here are {listed(known, 'and')}"
    return Problem(where, value, "there is no such field", remedy)
