"""
The language in which fields are declared: those of documents, messages and the SideCar's options.

A kind checks and reads the values of a field, writes them, and describes them to Kubernetes. A field of a dataclass
is declared once, by :func:`declare`; its name, type, bounds, default and documentation follow from that line and from
the string under it. :func:`record` makes the kind of such a class.

:meth:`Kind.read` checks and reads in one pass, and refuses each wrong value by calling ``refuse`` with its path, the
problem and the remedy. For a message the first problem is raised (:meth:`Kind.parse`), for a document they are
collected (:meth:`Kind.collect`). A remedy is required, because people read the refusal.

The kinds are not derived from the annotations, which cannot be evaluated on Python 3.9 and state no limits.
"""

from __future__ import annotations

import ast
import contextlib
import copy
import dataclasses
import functools
import inspect
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Callable, NamedTuple, Protocol

from dljob_wire.harmless import harmless
from dljob_wire.problems import (
    MAX_PROBLEMS,
    Problem,
    foreign_values,
    join,
    kind_of,
    listed,
    nearest,
    plain,
    shown,
)

Json = dict[str, Any]

LARGEST_WHOLE = 2**53 - 1
"""The largest integer that JSON readers in other languages read without rounding."""
METADATA_KEY = "kind"


# --- refusals -----------------------------------------------------------------------------


class Wrong(ValueError):
    """An invalid value with its path, the problem and the remedy."""

    def __init__(self, path: str, value: object, message: str, remedy: str) -> None:
        self.path = path
        self.value = value
        self.message = message
        self.remedy = remedy
        super().__init__(f"{path or 'the message'}: {message}; {remedy}")


class Refuse(Protocol):
    """Takes a problem; ``count`` is how many it has taken."""

    count: int

    def __call__(self, path: str, value: object, message: str, remedy: str) -> None: ...


class _Raise:
    count = 0

    def __call__(self, path: str, value: object, message: str, remedy: str) -> None:
        raise Wrong(path, value, message, remedy)


RAISE: Refuse = _Raise()


class _Enough(Exception):
    """There are as many problems as are reported of one document."""


class Collect:
    """Collects the problems of a document, up to :data:`~dljob_wire.problems.MAX_PROBLEMS`."""

    def __init__(self) -> None:
        self.count = 0
        self.problems: list[Problem] = []

    def __call__(self, path: str, value: object, message: str, remedy: str) -> None:
        self.problems.append(Problem(path, value, message, remedy))
        self.count += 1
        if self.count == MAX_PROBLEMS:
            raise _Enough


# --- parts of declarations ----------------------------------------------------------------


class Complaint(NamedTuple):
    """A problem of a value without its place in the document."""

    message: str
    remedy: str


@dataclass(frozen=True)
class Form:
    """The form of a string, in a pattern that Python and Kubernetes read alike."""

    pattern: str
    """For the whole string; anchors are added where they are needed."""
    complaint: str
    """The end of a sentence about a string that does not match."""
    remedy: str | Callable[[str], str]

    def matches(self, text: str) -> bool:
        """Return true if the whole of ``text`` has this form."""
        return self._compiled.fullmatch(text) is not None

    @functools.cached_property
    def _compiled(self) -> re.Pattern[str]:
        return re.compile(self.pattern)

    def mend(self, text: str) -> str:
        return self.remedy if isinstance(self.remedy, str) else self.remedy(text)

    def validation(self, field: str = "") -> Json:
        """
        Write the form as a rule of Kubernetes for a string, or for a field of an object.

        A rule has a message of ours, where a plain ``pattern`` would show only itself.
        """
        return {
            "rule": f"self{field}.matches(r'^(?:{self.pattern})$')",
            "message": f"{field[1:] or 'it'} {self.complaint}; {self.mend('')}",
        }


@dataclass(frozen=True)
class Rule:
    """A condition over several fields of a record."""

    name: str
    reads: tuple[str, ...]
    """The fields that the rule reads. It is not evaluated while one of them is wrong."""
    message: str
    """A sentence without its subject, which is the value or the name of the field to blame."""
    remedy: str
    holds: Callable[[Any], bool]
    """Gets what the record reads as: a value of its class, or a mapping with all defaults."""
    at: str = ""
    """The field to blame; empty for the record as a whole."""
    cel: str = ""
    """The same condition in the Common Expression Language, if it can express it."""


# --- kinds --------------------------------------------------------------------------------


class Kind(ABC):
    """The kind of values that a field, an item of a list, or a document accepts."""

    attribute = ""
    """The attribute of the class that declares the field."""
    absent: Any = None
    """The value of the attribute that stands for an absent field, such as 0 for "unknown"."""

    def __init__(
        self,
        *,
        description: str = "",
        required: bool = False,
        default: Any = None,
        remedy: str = "",
        fixed_because: str = "",
        name: str = "",
    ) -> None:
        self.description = description
        """For users; empty: the string under the field in its class."""
        self.required = required
        self.default = default
        """The value of a field that is left out, as in a document; ``None``: the field stays absent."""
        self.remedy = remedy
        """The remedy for a missing or wrong value, where the bounds make no good one."""
        self.fixed_because = fixed_because
        """Why it may not change while a job runs; empty: it may."""
        self.name = name
        """The name of the field in documents; empty: its attribute in camel case."""

    @abstractmethod
    def read(self, value: Any, path: str, *, refuse: Refuse) -> Any:
        """Return the checked value as the program works with it; refuse each problem."""

    def parse(self, value: Any, path: str = "") -> Any:
        """Read a value, or raise :class:`Wrong` for its first problem."""
        return self.read(value, path, refuse=RAISE)

    def collect(self, value: Any, path: str = "") -> tuple[Any, list[Problem]]:
        """Read a document, with its problems in their order."""
        collect, read = Collect(), None
        with contextlib.suppress(_Enough):
            read = self.read(value, path, refuse=collect)
        return read, collect.problems

    def from_text(self, text: str) -> Any:
        """Turn the text of an option or a variable into a value to read. May raise a ValueError."""
        return text

    @property
    def allowed(self) -> str:
        """The values that are allowed, for people."""
        return "a value"

    def write(self, value: Any) -> Any:
        """Return the value in a form that :func:`json.dumps` accepts."""
        return value

    def without_defaults(self, value: Any) -> Any:
        """Leave out the fields of a document that have their default."""
        return value

    @abstractmethod
    def keywords(self) -> Json:
        """Return type and bounds as keywords of OpenAPI."""

    def openapi(self, description: str = "") -> Json:
        """Describe the kind as a structural schema of Kubernetes."""
        default = {} if self.default is None else {"default": plain(self.default)}
        fixed = f" It cannot change while the job runs, because {self.fixed_because}."
        about = f"{self.description or description}{fixed if self.fixed_because else ''}"
        return {"description": about, **self.keywords(), **default}


def _refuse_type(refuse: Refuse, value: object, *, path: str, wanted: str, remedy: str) -> None:
    refuse(path, value, f"{shown(value)} is {kind_of(value)}, not {wanted}", remedy)


class Whole(Kind):
    """A whole number."""

    wanted = "a whole number"

    def __init__(
        self,
        minimum: float = 0,
        maximum: float = LARGEST_WHOLE,
        *,
        above: bool = False,
        below: bool = False,
        **about: Any,
    ) -> None:
        super().__init__(**about)
        self.minimum = minimum
        self.maximum = maximum
        self.above = above
        """True if the minimum itself is too small."""
        self.below = below
        """True if the maximum itself is too large."""
        self._is_closed = not above and not below

    def read(self, value: Any, path: str, *, refuse: Refuse) -> Any:
        # A boolean is an int in Python, but "gpus: yes" is a mistake and not one GPU.
        if type(value) is int and self._is_closed and self.minimum <= value <= self.maximum:
            return value
        self._refuse(value, path, refuse=refuse)
        return value

    def from_text(self, text: str) -> Any:
        return int(text)

    @property
    def allowed(self) -> str:
        """The values that are allowed, such as ``a number from 0 to 2``, ``above 0``, ``of at least 0 and below 1``."""
        ends = {"above" if self.above else "of at least": self.minimum}
        ends["below" if self.below else "of at most"] = self.maximum
        if self._is_closed and math.inf not in (-self.minimum, self.maximum):
            return f"{self.wanted} from {_amount(self.minimum)} to {_amount(self.maximum)}"
        parts = [f"{words} {_amount(end)}" for words, end in ends.items() if abs(end) < math.inf]
        return " ".join((self.wanted, " and ".join(parts))).rstrip()

    def _refuse(self, value: Any, path: str, *, refuse: Refuse) -> None:
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            remedy = self._unquoted(value) or self.remedy or self._in_bounds
            _refuse_type(refuse, value, path=path, wanted=self.wanted, remedy=remedy)
        elif complaint := self._complaint(value):
            refuse(path, value, *complaint)

    @property
    def _in_bounds(self) -> str:
        return f"give {self.allowed}"

    def _unquoted(self, value: object) -> str:
        """Return the remedy for a string that reads like a fitting number; else empty."""
        if not isinstance(value, str):
            return ""
        try:
            number = float(value)
        except ValueError:
            return ""
        if math.isfinite(number) and number.is_integer():
            number = int(number)
        return "" if self._complaint(number) else f"write {number} without quotes"

    def _complaint(self, value: float) -> Complaint | None:
        # math.isfinite would fail for a very long int.
        if not -math.inf < value < math.inf:
            return Complaint(
                f"{shown(value)} is not a finite number", self.remedy or self._in_bounds
            )
        if self.wanted == Whole.wanted and isinstance(value, float):
            rounded = int(value) if value.is_integer() else None
            fits = rounded is not None and self.minimum <= rounded <= self.maximum
            remedy = f"write {rounded}" if fits else self._in_bounds
            return Complaint(f"{shown(value)} is not a whole number", remedy)
        if value < self.minimum or (self.above and value == self.minimum):
            return Complaint(f"{shown(value)} {self._too_small()}", self.remedy or self._in_bounds)
        if value > self.maximum or (self.below and value == self.maximum):
            return Complaint(f"{shown(value)} is more than {self.maximum:,}", self._in_bounds)
        return None

    def _too_small(self) -> str:
        if self.above:
            return f"is not above {self.minimum:,}"
        if self.minimum == 0:
            return "is negative"
        if self.minimum == 1 and self.wanted == Whole.wanted:
            return "is not a positive number"
        return f"is less than {self.minimum:,}"

    def keywords(self) -> Json:
        return {
            "type": "integer",
            "format": "int64",
            "minimum": self.minimum,
            "maximum": self.maximum,
        }


class Number(Whole):
    """A finite number, whole or not."""

    wanted = "a number"

    def __init__(self, minimum: float = 0.0, maximum: float = 1e300, **about: Any) -> None:
        super().__init__(minimum, maximum, **about)

    def read(self, value: Any, path: str, *, refuse: Refuse) -> Any:
        if type(value) is float and self._is_closed and self.minimum <= value <= self.maximum:
            return value if value < math.inf else self._refuse(value, path, refuse=refuse)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or self._complaint(value):
            return self._refuse(value, path, refuse=refuse)
        return float(value)

    def from_text(self, text: str) -> Any:
        return float(text)

    def keywords(self) -> Json:
        least = "exclusiveMinimum" if self.above else "minimum"
        return {"type": "number", least: self.minimum, "maximum": self.maximum}


def _amount(number: float) -> str:
    is_whole = abs(number) < 1e16 and number == round(number)
    return f"{number:,.0f}" if is_whole else f"{number:g}"


class Decimal(Number):
    """A number that is written as people do: as 60 rather than 60.0."""

    def write(self, value: float) -> float:
        return plainest(value)


def plainest(number: float) -> int | float:
    return int(number) if number.is_integer() else number


class Flag(Kind):
    """True or false."""

    def read(self, value: Any, path: str, *, refuse: Refuse) -> Any:
        if isinstance(value, bool):
            return value
        remedy = "write true or false, without quotes"
        return _refuse_type(refuse, value, path=path, wanted="a boolean", remedy=remedy)

    def from_text(self, text: str) -> Any:
        return {"true": True, "false": False}.get(text.lower(), text)

    @property
    def allowed(self) -> str:
        return "true or false"

    def keywords(self) -> Json:
        return {"type": "boolean"}


class Text(Kind):
    """A string."""

    def __init__(
        self,
        max_length: int = 253,
        form: Form | None = None,
        *,
        min_length: int = 1,
        check: Callable[[str], Complaint | None] | None = None,
        is_for_programs: bool = False,
        **about: Any,
    ) -> None:
        super().__init__(**about)
        self.max_length = max_length
        self.form = form
        self.min_length = min_length
        self.check = check
        """A check that no pattern can express. It runs first, because its message is more helpful."""
        self.is_for_programs = is_for_programs
        """True if no person writes it. Kubernetes then gets the bare pattern, which costs the API server less than a
        rule with a message."""

    def read(self, value: Any, path: str, *, refuse: Refuse) -> Any:
        if not isinstance(value, str):
            remedy = self.remedy or "give a string"
            if isinstance(value, (int, float)):
                complaint = self._complaint(shown(value))
                remedy = complaint.remedy if complaint else "write it in quotes"
            return _refuse_type(refuse, value, path=path, wanted="a string", remedy=remedy)
        if complaint := self._complaint(value):
            refuse(path, value, *complaint)
        return value

    @property
    def allowed(self) -> str:
        return "a text"

    def _complaint(self, value: str) -> Complaint | None:
        if self.check is not None and (complaint := self.check(value)):
            return complaint
        if len(value) < self.min_length:
            return Complaint(
                "the string is empty", self.remedy or "write something or leave it out"
            )
        if len(value) > self.max_length:
            too_long = f"the string has {len(value)} characters, more than {self.max_length}"
            return Complaint(too_long, "shorten it")
        if self.form is not None and not self.form.matches(value):
            return Complaint(f"{shown(value)} {self.form.complaint}", self.form.mend(value))
        return None

    def keywords(self) -> Json:
        least = {"minLength": self.min_length} if self.min_length else {}
        form: Json = {}
        if self.form is not None and self.is_for_programs:
            form = {"pattern": f"^(?:{self.form.pattern})$"}
        elif self.form is not None:
            form = {"x-kubernetes-validations": [self.form.validation()]}
        return {"type": "string", **least, "maxLength": self.max_length, **form}


class Said(Text):
    """A text of a program, which may be empty and is made harmless for terminals."""

    def __init__(self, max_length: int = 1024, form: Form | None = None, **about: Any) -> None:
        super().__init__(max_length, form, min_length=0, is_for_programs=True, **about)

    def read(self, value: Any, path: str, *, refuse: Refuse) -> Any:
        if type(value) is str and len(value) <= self.max_length:
            if self.form is None:
                return harmless(value)
            if self.form.matches(value):
                return value
        return super().read(value, path, refuse=refuse)


class OneOf(Kind):
    """One of some words, or of the values of an enumeration."""

    def __init__(self, words: type[Enum] | tuple[str, ...], **about: Any) -> None:
        super().__init__(**about)
        self.words: Mapping[str, Any] = (
            {word: word for word in words}
            if isinstance(words, tuple)
            else {word.value: word for word in words}
        )

    def read(self, value: Any, path: str, *, refuse: Refuse) -> Any:
        if isinstance(value, str):
            if value in self.words:
                return self.words[value]
            return refuse(path, value, *self._complaint(value))
        remedy = self.remedy or f"give {listed(self.words, 'or')}"
        if isinstance(value, (int, float)):
            remedy = self._complaint(shown(value)).remedy
        return _refuse_type(refuse, value, path=path, wanted="a string", remedy=remedy)

    @property
    def allowed(self) -> str:
        return listed(self.words, "or")

    def _complaint(self, value: str) -> Complaint:
        if len(self.words) == 1:
            return Complaint(f"{shown(value)} is not known here", f"write {next(iter(self.words))}")
        guess = nearest(value, self.words)
        return Complaint(
            f"{shown(value)} is not one of the words allowed here",
            f"did you mean {guess}?"
            if guess
            else self.remedy or f"give {listed(self.words, 'or')}",
        )

    def write(self, value: Any) -> Any:
        return value.value if isinstance(value, Enum) else value

    def keywords(self) -> Json:
        return {"type": "string", "enum": list(self.words)}


class Quantity(Kind):
    """An amount as Kubernetes writes it: a number, or a string with a unit, which is not checked."""

    def read(self, value: Any, path: str, *, refuse: Refuse) -> Any:
        if isinstance(value, bool) or not isinstance(value, (int, float, str)):
            remedy = 'give a number, or a string such as "4Gi"'
            _refuse_type(refuse, value, path=path, wanted="an amount", remedy=remedy)
        return value

    def keywords(self) -> Json:
        return {"x-kubernetes-int-or-string": True, "maxLength": 64}


class Foreign(Kind):
    """Any JSON, which another program writes."""

    def read(self, value: Any, path: str, *, refuse: Refuse) -> Any:
        _refuse_foreign(value, path, refuse=refuse)
        return value

    def keywords(self) -> Json:
        return {"x-kubernetes-preserve-unknown-fields": True}


def _refuse_foreign(value: Any, path: str, *, refuse: Refuse) -> None:
    for each in foreign_values(value, path):
        refuse(each.path, each.value, each.message, each.remedy)


class Many(Kind):
    """A list."""

    def __init__(
        self,
        items: Kind,
        max_items: int,
        *,
        min_items: int = 0,
        unique: bool = False,
        key: str = "",
        into: Callable[[list[Any]], Any] = tuple,
        **about: Any,
    ) -> None:
        super().__init__(**about)
        self.items = items
        self.max_items = max_items
        self.min_items = min_items
        self.unique = unique
        """True if no item may occur twice."""
        self.key = key
        """The field that identifies each item."""
        self.into = into

    def read(self, value: Any, path: str, *, refuse: Refuse) -> Any:
        if not isinstance(value, list):
            alone = self.items.collect(value)[1]
            remedy = self.remedy or ("give a list" if alone else f"write [{shown(value)}]")
            return _refuse_type(refuse, value, path=path, wanted="a list", remedy=remedy)
        if not self.min_items <= len(value) <= self.max_items:
            too = f"it has {len(value)} items"
            bounds = f"give from {self.min_items} to {self.max_items} items"
            if not value:
                too, bounds = "the list is empty", self.remedy or "give at least one item"
            return refuse(path, value, too, bounds)
        read = [
            self.items.read(item, f"{path}[{at}]", refuse=refuse) for at, item in enumerate(value)
        ]
        self._refuse_twins(value, path, refuse=refuse)
        return self.into(read)

    def from_text(self, text: str) -> Any:
        words = map(str.strip, text.split(","))
        return [self.items.from_text(word) for word in words if word]

    @property
    def allowed(self) -> str:
        return f"a list, of each {self.items.allowed}"

    def _refuse_twins(self, value: list[Any], path: str, *, refuse: Refuse) -> None:
        if self.unique:
            for index, item in enumerate(value):
                if item in value[:index]:
                    again = f"{shown(item)} is in the list twice"
                    refuse(f"{path}[{index}]", item, again, "remove one of them")
        if self.key:
            names: set[str] = set()
            for index, item in enumerate(value):
                name = item.get(self.key) if isinstance(item, Mapping) else None
                if not isinstance(name, str):
                    continue
                if name in names:
                    where = join(f"{path}[{index}]", self.key)
                    taken = f"{shown(name)} is the name of an earlier entry"
                    refuse(where, name, taken, "give each entry a name of its own")
                names.add(name)

    def without_defaults(self, value: Any) -> Any:
        return [self.items.without_defaults(item) for item in value]

    def write(self, value: Any) -> Any:
        return [self.items.write(item) for item in value]

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


class Named(Kind):
    """Values of one kind by names of the user's choice, such as labels and annotations."""

    def __init__(
        self,
        values: Kind,
        max_items: int,
        keys: Form,
        *,
        own: str = "",
        known: Mapping[str, Kind] | None = None,
        **about: Any,
    ) -> None:
        super().__init__(**about)
        self.values = values
        self.max_items = max_items
        self.keys = keys
        self.own = own
        """Of names that begin with this, only those in ``known`` may be given."""
        self.known = known or {}

    def read(self, value: Any, path: str, *, refuse: Refuse) -> Any:
        if not isinstance(value, Mapping):
            remedy = "write one name: value a line"
            return _refuse_type(refuse, value, path=path, wanted="a mapping", remedy=remedy)
        if len(value) > self.max_items:
            too_many = f"it has {len(value)} entries"
            return refuse(path, value, too_many, f"give at most {self.max_items}")
        return {
            key: self._entry(key, item, where=join(path, key), refuse=refuse)
            for key, item in value.items()
        }

    def _entry(self, key: object, value: Any, *, where: str, refuse: Refuse) -> Any:
        if not isinstance(key, str):
            _refuse_type(refuse, key, path=where, wanted="a string", remedy="write it in quotes")
        elif not self.keys.matches(key):
            refuse(where, key, f"{shown(key)} {self.keys.complaint}", self.keys.mend(key))
        elif self.own and key.startswith(self.own) and key not in self.known:
            _refuse_unknown(key, value, where=where, known=self.known, refuse=refuse)
        else:
            return self.known.get(key, self.values).read(value, where, refuse=refuse)
        return None

    def from_text(self, text: str) -> Any:
        parts = [part.partition("=") for part in text.split(",") if part.strip()]
        return {name.strip(): self.values.from_text(value) for name, _, value in parts}

    @property
    def allowed(self) -> str:
        return f"a mapping of names to {self.values.allowed}, or NAME=VALUE,NAME=VALUE"

    def read_good(self, value: Mapping[str, Any]) -> dict[str, Any]:
        """Read up to ``max_items`` valid values and ignore the others."""
        good: dict[str, Any] = {}
        for name, item in value.items():
            if len(good) < self.max_items:
                with contextlib.suppress(Wrong):
                    good[name] = self._entry(name, item, where="", refuse=RAISE)
        return good

    def keywords(self) -> Json:
        return {
            "type": "object",
            "maxProperties": self.max_items,
            "additionalProperties": self.values.openapi(),
        }


class Record(Kind):
    """A mapping with known fields."""

    is_lenient = False
    """True if unknown fields are ignored, because a newer version of DLJob may send them, and ``null`` is written."""

    def __init__(
        self,
        fields: Mapping[str, Kind] | None = None,
        *,
        into: Callable[..., Any] | None = None,
        rules: tuple[Rule, ...] = (),
        is_open: bool = False,
        noun: str = "",
        **about: Any,
    ) -> None:
        super().__init__(**about)
        self.fields = dict(fields or {})
        if into is not None:
            self.fields = {name: _placed(kind, snake(name)) for name, kind in self.fields.items()}
        self.into = into
        """Makes the program's value of the attributes; ``None``: a mapping with all defaults is the value."""
        self.rules = rules
        self.is_open = is_open
        """True if there may be other fields, which are kept and not checked."""
        self.noun = noun
        """The subject of sentences about an item of a list."""
        self._entries = {name: (kind.attribute or name, kind) for name, kind in self.fields.items()}
        self._is_plain = all(map(str.isalnum, self.fields))
        self._required = [name for name, kind in self.fields.items() if kind.required]
        self._defaults = [
            (name, kind)
            for name, kind in self.fields.items()
            if into is None and kind.default is not None
        ]

    def read(self, value: Any, path: str, *, refuse: Refuse) -> Any:
        if not isinstance(value, Mapping):
            known = listed(tuple(self.fields) or ("any",), "and")
            remedy = self.remedy or f"give its fields: {known}"
            return _refuse_type(refuse, value, path=path, wanted="a mapping", remedy=remedy)
        found: dict[str, Any] = {}
        broken: set[str] = set()
        prefix = f"{path}." if path else ""
        for key, inner in value.items():
            before = refuse.count
            if key not in self.fields:
                self._read_unknown(key, inner, path=path, refuse=refuse)
                if refuse.count != before:
                    # A misspelt field is not reported as missing, too.
                    broken |= {key, nearest(str(key), self.fields)}
                elif self.is_open:
                    found[key] = inner
            elif inner is not None:  # An empty field counts as absent, as it does for Kubernetes.
                [attribute, kind] = self._entries[key]
                where = prefix + key if self._is_plain else join(path, key)
                read = kind.read(inner, where, refuse=refuse)
                if refuse.count == before:
                    found[attribute] = read
                else:
                    broken.add(key)
        self._complete(found, broken, path=path, refuse=refuse)
        return self._made(found, value, path=path, broken=broken, refuse=refuse)

    def _complete(self, found: Json, broken: set[str], *, path: str, refuse: Refuse) -> None:
        for name, kind in self._defaults:
            if name not in found and name not in broken:
                found[name] = kind.read(plain(kind.default), name, refuse=refuse)
        for name in self._required:
            [attribute, kind] = self._entries[name]
            if attribute not in found and name not in broken:
                broken.add(name)
                refuse(join(path, name), None, "it is missing", kind.remedy or "add it")

    def _made(
        self, found: Json, value: Mapping[str, Any], *, path: str, broken: set[str], refuse: Refuse
    ) -> Any:
        made: Any = found
        if self.into is not None:
            if broken and not broken.isdisjoint(self._required):
                return None
            try:
                made = self.into(**found)
            except Wrong as wrong:
                return refuse(
                    join(path, wrong.path) if path else wrong.path,
                    wrong.value,
                    wrong.message,
                    wrong.remedy,
                )
        for rule in self.rules:
            if broken.isdisjoint(rule.reads) and not rule.holds(made):
                blamed = value.get(rule.at, self.fields[rule.at].default) if rule.at else value
                where = join(path, rule.at) if rule.at else path
                subject = "it" if isinstance(blamed, (Mapping, list)) else shown(blamed)
                refuse(where, blamed, f"{subject} {rule.message}", rule.remedy)
        return made

    def _read_unknown(self, key: object, value: Any, *, path: str, refuse: Refuse) -> None:
        if self.is_lenient:
            return
        where = join(path, key)
        if not isinstance(key, str):
            _refuse_type(
                refuse, key, path=where, wanted="a field name", remedy="write it in quotes"
            )
        elif self.is_open:
            _refuse_foreign(value, where, refuse=refuse)
        else:
            _refuse_unknown(key, value, where=where, known=self.fields, refuse=refuse)

    def write(self, value: Any) -> Any:
        if self.into is None:
            return plain(value)
        written = {}
        for name, kind in self.fields.items():
            held = getattr(value, kind.attribute)
            is_absent = held is None or (held == kind.absent and not self.is_lenient)
            written[name] = None if is_absent else kind.write(held)
        return written if self.is_lenient else without_none(**written)

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

    def keywords(self) -> Json:
        keywords: Json = {"type": "object"}
        if self.is_open:
            keywords["x-kubernetes-preserve-unknown-fields"] = True
        if self._required:
            keywords["required"] = list(self._required)
        if self.fields:
            notes = documentation(self.into) if isinstance(self.into, type) else {}
            keywords["properties"] = {
                name: kind.openapi(notes.get(kind.attribute, ""))
                for name, kind in self.fields.items()
            }
        if rules := [self._validation(rule) for rule in self.rules if rule.cel]:
            keywords["x-kubernetes-validations"] = rules
        return keywords

    def _validation(self, rule: Rule) -> Json:
        where = {"fieldPath": f".{rule.at}"} if rule.at else {}
        message = f"{rule.at or self.noun or 'it'} {rule.message}; {rule.remedy}"
        return {"rule": rule.cel, "message": message, **where}


def _placed(kind: Kind, attribute: str) -> Kind:
    placed = copy.copy(kind)
    placed.attribute = kind.attribute or attribute
    return placed


def without_none(**fields: Any) -> Json:
    """Keep the fields that have a value, zero and false included."""
    return {name: value for name, value in fields.items() if value or value == 0}


def _refuse_unknown(
    name: str, value: object, *, where: str, known: Mapping[str, Kind], refuse: Refuse
) -> None:
    guess = nearest(name, known)
    remedy = f"did you mean {guess}?" if guess else f"the fields here are {listed(known, 'and')}"
    refuse(where, value, "there is no such field", remedy)


class Either(Kind):
    """One of several messages, named by the field ``kind``."""

    def __init__(self, *messages: type) -> None:
        super().__init__()
        self.messages = {message.__name__.lower(): message for message in messages}
        self._kind = OneOf(tuple(self.messages))

    def read(self, value: Any, path: str, *, refuse: Refuse) -> Any:
        if not isinstance(value, Mapping):
            return _refuse_type(
                refuse, value, path=path, wanted="a mapping", remedy="give an object with a kind"
            )
        word = self._kind.read(value.get("kind"), join(path, "kind"), refuse=refuse)
        return nested(self.messages[word]).read(value, path, refuse=refuse) if word else None

    def write(self, value: Any) -> Any:
        kind: type = type(value)
        return {"kind": kind.__name__.lower(), **nested(kind).write(value)}

    def keywords(self) -> Json:
        raise NotImplementedError("no document of Kubernetes has one of several messages")


# --- declarations -------------------------------------------------------------------------


def declare(kind: Kind, default: Any = dataclasses.MISSING, **more: Any) -> Any:
    """Declare a field of a dataclass. One that is ``None`` by default may be ``null``."""
    return field(default=default, metadata={METADATA_KEY: kind}, **more)


def record(
    declared: type,
    *,
    without: tuple[str, ...] = (),
    more: Mapping[str, Kind] | None = None,
    checks: Mapping[str, Callable[[str], Complaint | None]] | None = None,
    **about: Any,
) -> Record:
    """
    Return the kind of a document's part whose fields a dataclass declares.

    ``without`` names fields that the part does not have, ``more`` has others, and ``checks`` further checks of texts.
    """
    fields = {**_declared_fields(declared), **(more or {})}
    for name in without:
        del fields[name]
    for name, check in (checks or {}).items():
        fields[name] = copy.copy(fields[name])
        vars(fields[name])["check"] = check
    return Record(fields, into=declared, **about)


# Cache the result, because a controller reads hundreds of nested messages per second.
@functools.cache
def nested(declared: type) -> Record:
    """Return the kind of a message whose fields a dataclass declares."""
    made = record(declared)
    made.is_lenient = True
    return made


@functools.cache
def _declared_fields(declared: type) -> Mapping[str, Kind]:
    fields = {}
    for each in dataclasses.fields(declared):
        if METADATA_KEY not in each.metadata:
            continue
        kind = copy.copy(each.metadata[METADATA_KEY])
        kind.attribute = each.name
        kind.required = each.default is each.default_factory is dataclasses.MISSING
        if each.default not in (None, "", (), dataclasses.MISSING):
            written = kind.without_defaults(kind.write(each.default))
            if kind.collect(written)[1]:
                kind.absent = each.default
            else:
                kind.default = written
        fields[kind.name or camel(each.name)] = kind
    return fields


@functools.cache
def documentation(declared: type) -> Mapping[str, str]:
    """Return the strings under the fields of a class and of its bases, each as one line."""
    notes: dict[str, str] = {}
    for each in filter(dataclasses.is_dataclass, reversed(declared.__mro__)):
        tree = ast.parse(inspect.getsource(each)).body[0]
        assert isinstance(tree, ast.ClassDef)
        for name, text in iter_notes(tree):
            notes[name] = " ".join(text.split())
    return notes


def iter_notes(tree: ast.ClassDef) -> Iterator[tuple[str, str]]:
    """Yield the fields of a class that have a string under them, with it."""
    for above, below in zip(tree.body, tree.body[1:]):
        text = below.value if isinstance(below, ast.Expr) else None
        if isinstance(above, ast.AnnAssign) and isinstance(text, ast.Constant):
            assert isinstance(above.target, ast.Name)
            yield above.target.id, str(text.value)


def camel(name: str) -> str:
    """Turn ``world_size`` into ``worldSize``, the style of Kubernetes fields."""
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


def snake(name: str) -> str:
    """Turn ``worldSize`` into ``world_size``."""
    return re.sub("([A-Z])", r"_\1", name).lower()
