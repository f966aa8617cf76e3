"""
The kinds of fields a message may have: each reads a JSON value, writes one, and describes itself as a schema.

A message declares its fields with :func:`wire`. The codec, the limits and the schemas in the OpenAPI file follow
from the declarations. A wrong value is refused with its path, the value and the remedy, because people read the
refusal in a log.

The kinds are not derived from the annotations, which cannot be evaluated on Python 3.9 and state no limits.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from dljob_wire.harmless import harmless

LARGEST_WHOLE = 2**53 - 1
"""The largest integer that JSON readers in other languages read without rounding."""
SHOWN_CHARACTERS = 80
METADATA_KEY = "wire"


class Wrong(ValueError):
    """An invalid value with its path, the problem and the remedy."""

    def __init__(self, path: str, value: object, problem: str, remedy: str) -> None:
        self.path = path
        self.value = value
        self.problem = problem
        self.remedy = remedy
        where = path or "the message"
        super().__init__(f"{where}: {problem} (it is {shown(value)}); {remedy}")

    def below(self, prefix: str) -> Wrong:
        """Return the same problem with ``prefix`` before the path."""
        return Wrong(joined(prefix, self.path), self.value, self.problem, self.remedy)


class Kind(ABC):
    """The kind of values that a field accepts."""

    @abstractmethod
    def read(self, value: Any, path: str) -> Any:
        """Return the checked value, or raise :class:`Wrong`."""

    def write(self, value: Any) -> Any:
        """Return the value in a form that :func:`json.dumps` accepts."""
        return value

    @abstractmethod
    def schema(self) -> dict[str, Any]:
        """Describe the field as a JSON schema."""


def wire(kind: Kind) -> dict[str, Any]:
    """Return the metadata of a dataclass field of this kind."""
    return {METADATA_KEY: kind}


# Cache the result, because a controller reads hundreds of nested messages per second.
@functools.cache
def kinds_of(message: type) -> Mapping[str, tuple[str, Kind]]:
    """Return the attribute and the kind of each field of a message, by the field's JSON name."""
    return MappingProxyType(
        {
            camel(each.name): (each.name, each.metadata[METADATA_KEY])
            for each in dataclasses.fields(message)
            if METADATA_KEY in each.metadata
        }
    )


@functools.cache
def required_of(message: type) -> tuple[str, ...]:
    """Return the names of the fields that have no default, in the order of the message."""
    return tuple(
        camel(each.name)
        for each in dataclasses.fields(message)
        if each.default is dataclasses.MISSING and each.default_factory is dataclasses.MISSING
    )


def camel(name: str) -> str:
    """Turn ``world_size`` into ``worldSize``, the style of Kubernetes fields."""
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


def snake(name: str) -> str:
    """Turn ``worldSize`` into ``world_size``."""
    return re.sub("([A-Z])", r"_\1", name).lower()


def joined(prefix: str, path: str) -> str:
    if not prefix or not path or path.startswith("["):
        return prefix + path
    return f"{prefix}.{path}"


def shown(value: object) -> str:
    """Return the value in one short line."""
    # Cut the value first, because the representation of a huge value costs time and memory.
    part = value[: SHOWN_CHARACTERS + 1] if isinstance(value, (str, bytes, list)) else value
    if isinstance(value, Mapping):
        return f"an object with {len(value)} fields"
    if isinstance(value, int) and abs(value) > LARGEST_WHOLE:
        return "a very large number"
    try:
        text = repr(part)
    except RecursionError:
        # A value that the parser accepts can be nested too deep to print.
        return "a value that is nested too deep"
    return text if len(text) <= SHOWN_CHARACTERS else text[:SHOWN_CHARACTERS] + "…"


@dataclass(frozen=True)
class Whole(Kind):
    """A whole number."""

    minimum: int = 0
    maximum: int = LARGEST_WHOLE

    def read(self, value: Any, path: str) -> int:
        # Refuse a boolean, which is an int in Python.
        if isinstance(value, bool) or not isinstance(value, int):
            raise Wrong(path, value, "must be a whole number", f"write {self.minimum} or more")
        if not self.minimum <= value <= self.maximum:
            remedy = f"write a whole number from {self.minimum} to {self.maximum}"
            raise Wrong(path, value, "is out of bounds", remedy)
        return value

    def schema(self) -> dict[str, Any]:
        return {"type": "integer", "minimum": self.minimum, "maximum": self.maximum}


@dataclass(frozen=True)
class Number(Kind):
    """A finite number, whole or not."""

    minimum: float = 0.0
    maximum: float = 1e300
    above: bool = False
    """True if the minimum itself is too small."""

    def read(self, value: Any, path: str) -> float:
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise Wrong(path, value, "must be a number", "write a number")
        # Compare first, because isfinite raises for a huge integer.
        fits = self.minimum <= value <= self.maximum and math.isfinite(value)
        if not fits or (self.above and value <= self.minimum):
            than = "above" if self.above else "from"
            remedy = f"write a number {than} {self.minimum:g} to {self.maximum:g}"
            raise Wrong(path, value, "is out of bounds", remedy)
        return float(value)

    def schema(self) -> dict[str, Any]:
        least = "exclusiveMinimum" if self.above else "minimum"
        return {"type": "number", least: self.minimum, "maximum": self.maximum}


@dataclass(frozen=True)
class Flag(Kind):
    """True or false."""

    def read(self, value: Any, path: str) -> bool:
        if not isinstance(value, bool):
            raise Wrong(path, value, "must be true or false", "write true or false")
        return value

    def schema(self) -> dict[str, Any]:
        return {"type": "boolean"}


@dataclass(frozen=True)
class Text(Kind):
    """A short text, optionally of a given form."""

    longest: int = 1024
    pattern: str = ""
    """A regular expression that the whole text must match; empty means any text."""
    like: str = "text"
    """The description of a valid text in the remedy."""

    def read(self, value: Any, path: str) -> str:
        if not isinstance(value, str):
            raise Wrong(path, value, "must be a text", f"write {self.like}")
        if len(value) > self.longest:
            remedy = f"write at most {self.longest} characters"
            raise Wrong(path, value, f"has {len(value)} characters", remedy)
        if not self.pattern:
            return harmless(value)
        if re.fullmatch(self.pattern, value) is None:
            raise Wrong(path, value, "has the wrong form", f"write {self.like}")
        return value

    def schema(self) -> dict[str, Any]:
        described: dict[str, Any] = {"type": "string", "maxLength": self.longest}
        if self.pattern:
            described["pattern"] = f"^(?:{self.pattern})$"
        return described


@dataclass(frozen=True)
class OneOf(Kind):
    """One of the values of an enumeration."""

    words: Any

    def read(self, value: Any, path: str) -> Any:
        if not isinstance(value, str) or value not in self._known():
            raise Wrong(
                path, value, "is not one of the known words", f"write {' or '.join(self._known())}"
            )
        return self.words(value)

    def write(self, value: Any) -> Any:
        return value.value

    def schema(self) -> dict[str, Any]:
        return {"type": "string", "enum": self._known()}

    def _known(self) -> list[str]:
        return [word.value for word in self.words]


@dataclass(frozen=True)
class Maybe(Kind):
    """A value that may be missing; missing is written as ``null``."""

    kind: Kind

    def read(self, value: Any, path: str) -> Any:
        return None if value is None else self.kind.read(value, path)

    def write(self, value: Any) -> Any:
        return None if value is None else self.kind.write(value)

    def schema(self) -> dict[str, Any]:
        return {"anyOf": [self.kind.schema(), {"type": "null"}]}


@dataclass(frozen=True)
class Each(Kind):
    """A list of values of one kind."""

    kind: Kind
    most: int
    least: int = 0

    def read(self, value: Any, path: str) -> tuple[Any, ...]:
        if not isinstance(value, list):
            raise Wrong(path, value, "must be a list", "write a list")
        if not self.least <= len(value) <= self.most:
            remedy = f"write {self.least} to {self.most} items"
            raise Wrong(path, value, f"has {len(value)} items", remedy)
        return tuple(self.kind.read(item, f"{path}[{at}]") for at, item in enumerate(value))

    def write(self, value: Any) -> Any:
        return [self.kind.write(item) for item in value]

    def schema(self) -> dict[str, Any]:
        items = {"type": "array", "items": self.kind.schema(), "maxItems": self.most}
        return {**items, "minItems": self.least} if self.least else items


def _check_object(value: Any, path: str) -> None:
    if not isinstance(value, dict):
        raise Wrong(path, value, "must be an object", "write an object")


@dataclass(frozen=True)
class Named(Kind):
    """Values of one kind by names that the user chooses."""

    kind: Kind
    most: int
    names: Text

    def read(self, value: Any, path: str) -> dict[str, Any]:
        _check_object(value, path)
        if len(value) > self.most:
            remedy = f"write at most {self.most} fields"
            raise Wrong(path, value, f"has {len(value)} fields", remedy)
        return {
            self.names.read(name, path): self.kind.read(item, joined(path, shown(name)))
            for name, item in value.items()
        }

    def read_good(self, value: Mapping[str, Any]) -> dict[str, Any]:
        """Read up to ``most`` valid values and ignore the others."""
        good: dict[str, Any] = {}
        for name, item in value.items():
            if len(good) < self.most:
                with contextlib.suppress(Wrong):
                    good[self.names.read(name, "")] = self.kind.read(item, "")
        return good

    def write(self, value: Any) -> Any:
        return {name: self.kind.write(item) for name, item in value.items()}

    def schema(self) -> dict[str, Any]:
        described = {"type": "object", "additionalProperties": self.kind.schema()}
        return {**described, "maxProperties": self.most, "propertyNames": self.names.schema()}


@dataclass(frozen=True)
class Nested(Kind):
    """Another message."""

    message: type

    def read(self, value: Any, path: str) -> Any:
        _check_object(value, path)
        given = {}
        for name, (attribute, kind) in kinds_of(self.message).items():
            if name in value:
                given[attribute] = kind.read(value[name], joined(path, name))
            elif name in required_of(self.message):
                raise Wrong(joined(path, name), None, "is missing", f"write {name}")
        # Ignore unknown fields, which a newer version of DLJob may send.
        try:
            return self.message(**given)
        except Wrong as wrong:
            raise wrong.below(path) from wrong

    def write(self, value: Any) -> Any:
        return {
            name: kind.write(getattr(value, attribute))
            for name, (attribute, kind) in kinds_of(self.message).items()
        }

    def schema(self) -> dict[str, Any]:
        return {"$ref": f"#/components/schemas/{self.message.__name__}"}

    def described(self) -> dict[str, Any]:
        """Return the schema of the message, to which :meth:`schema` refers."""
        fields = {name: kind.schema() for name, (_, kind) in kinds_of(self.message).items()}
        described: dict[str, Any] = {"type": "object", "properties": fields}
        required = list(required_of(self.message))
        return {**described, "required": required} if required else described


@dataclass(frozen=True)
class Either(Kind):
    """One of several messages, named by the field ``kind``."""

    messages: tuple[type, ...]

    def read(self, value: Any, path: str) -> Any:
        _check_object(value, path)
        words = self._words()
        at = joined(path, "kind")
        word = value.get("kind")
        if not isinstance(word, str) or word not in words:
            raise Wrong(at, word, "is not one of the known words", f"write {' or '.join(words)}")
        return Nested(words[word]).read(value, path)

    def write(self, value: Any) -> Any:
        return {"kind": self._word(type(value)), **Nested(type(value)).write(value)}

    def schema(self) -> dict[str, Any]:
        return {
            "oneOf": [
                {
                    "allOf": [Nested(message).schema()],
                    "type": "object",
                    "properties": {"kind": {"type": "string", "enum": [word]}},
                    "required": ["kind"],
                }
                for word, message in self._words().items()
            ]
        }

    def _words(self) -> dict[str, type]:
        return {self._word(message): message for message in self.messages}

    @staticmethod
    def _word(message: type) -> str:
        return message.__name__.lower()
