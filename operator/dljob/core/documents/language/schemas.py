"""
The language that the schema of a document is written in.

A schema is a tree of nodes, each with a type, bounds, a default and a description for users. With the one tree a
document is checked (:meth:`Node.problems`), completed with its defaults (:meth:`Node.completed`), stripped of them
(:meth:`Node.without_defaults`), read and written (:meth:`Node.read`, :meth:`Node.write`), and described to
Kubernetes (:meth:`Node.openapi`). :mod:`dljob.core.documents.jobfields` has the schema of a DLJob.

This module has the nodes without parts; lists and records are in :mod:`dljob.core.documents.language.records`.
"""

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from dljob.core.problems import Problem, foreign_values, kind_of, listed, nearest, plain, shown

Json = dict[str, Any]


class Complaint(NamedTuple):
    """A problem of a value without its place in the document."""

    message: str
    remedy: str


@dataclass(frozen=True, slots=True)
class Form:
    """The form of a string, in a pattern that Python and Kubernetes read alike."""

    pattern: str
    """For the whole string; anchors are added where they are needed."""
    complaint: str
    """The end of a sentence about a string that does not match."""
    remedy: Callable[[str], str]

    def matches(self, text: str) -> bool:
        """Return true if the whole of ``text`` has this form."""
        return re.fullmatch(self.pattern, text) is not None

    def validation(self, field: str = "") -> Json:
        """
        Write the form as a rule of Kubernetes for a string, or for a field of an object.

        A rule has a message of ours, where a plain ``pattern`` would show only itself.
        """
        return {
            "rule": f"self{field}.matches(r'^(?:{self.pattern})$')",
            "message": f"{field.removeprefix('.') or 'it'} {self.complaint}; {self.remedy('')}",
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Node(ABC):
    """The schema of a field, an item of a list, or a document."""

    description: str
    required: bool = False
    default: Any = None
    """The value of a field that is left out; ``None``: the field stays absent."""
    remedy: str = ""
    """The remedy for a missing or wrong value, where the bounds make no good one."""
    fixed_because: str = ""
    """Why it may not change while a job runs; empty: it may."""
    attribute: str = ""
    """The attribute of the value that holds the field; empty: its name in snake case."""
    reads: Callable[[Any], Any] | None = None
    """Turns the value of a document into the attribute; ``None``: they are the same."""
    writes: Callable[[Any], Any] | None = None
    """The inverse of ``reads``; a field that it makes ``None`` is left out."""

    @abstractmethod
    def problems(self, value: Any, path: str) -> Iterator[Problem]:
        """Yield all problems of ``value``, in the order of the document."""

    @abstractmethod
    def keywords(self) -> Json:
        """Return type and bounds as OpenAPI keywords."""

    def completed(self, value: Any) -> Any:
        """Fill in the defaults. Values of the wrong type pass unchanged."""
        return value

    def without_defaults(self, value: Any) -> Any:
        """Leave out the fields that have their default: the inverse of :meth:`completed`."""
        return value

    def read(self, value: Any) -> Any:
        """Turn a checked and completed document into the value that the program works with."""
        return value if self.reads is None else self.reads(value)

    def write(self, value: Any) -> Any:
        """Turn such a value into a document again, with its defaults."""
        return value if self.writes is None else self.writes(value)

    def openapi(self) -> Json:
        """Describe the node as a structural schema of Kubernetes."""
        default = {} if self.default is None else {"default": plain(self.default)}
        fixed = f" It cannot change while the job runs, because {self.fixed_because}."
        description = f"{self.description}{fixed if self.fixed_because else ''}"
        return {"description": description, **self.keywords(), **default}

    def wrong_type(self, value: object, path: str, *, wanted: str, remedy: str) -> Problem:
        """Build the problem of a value of another type than ``wanted``."""
        return Problem(path, value, f"{shown(value)} is {kind_of(value)}, not {wanted}", remedy)


@dataclass(frozen=True, slots=True, kw_only=True)
class Text(Node):
    """A string."""

    max_length: int = 253
    min_length: int = 1
    form: Form | None = None
    choices: tuple[str, ...] = ()
    is_for_programs: bool = False
    """True if no person writes it. The CRD then has the bare pattern, which costs the API server less than a rule
    with a message."""
    check: Callable[[str], Complaint | None] | None = None
    """A check that no pattern can express. It runs first, because its message is more helpful."""

    def problems(self, value: Any, path: str) -> Iterator[Problem]:
        if not isinstance(value, str):
            yield self.wrong_type(value, path, wanted="a string", remedy=self._instead_of(value))
        elif complaint := self._complaint(value):
            yield Problem(path, value, *complaint)

    def _instead_of(self, value: object) -> str:
        """Return the remedy for a value that is no string."""
        if isinstance(value, int | float):
            complaint = self._complaint(shown(value))
            return complaint.remedy if complaint else "write it in quotes"
        return self.remedy or (
            f"give {listed(self.choices, 'or')}" if self.choices else "give a string"
        )

    def _complaint(self, value: str) -> Complaint | None:
        if self.check is not None and (complaint := self.check(value)):
            return complaint
        if self.choices:
            return None if value in self.choices else self._not_a_choice(value)
        if len(value) < self.min_length:
            return Complaint(
                "the string is empty", self.remedy or "write something or leave it out"
            )
        if len(value) > self.max_length:
            too_long = f"the string has {len(value)} characters, more than {self.max_length}"
            return Complaint(too_long, "shorten it")
        if self.form is not None and not self.form.matches(value):
            return Complaint(f"{shown(value)} {self.form.complaint}", self.form.remedy(value))
        return None

    def _not_a_choice(self, value: str) -> Complaint:
        if len(self.choices) == 1:
            return Complaint(f"{shown(value)} is not known here", f"write {self.choices[0]}")
        known = self.remedy or f"give {listed(self.choices, 'or')}"
        guess = nearest(value, self.choices)
        return Complaint(
            f"{shown(value)} is not one of the words allowed here",
            f"did you mean {guess}?" if guess else known,
        )

    def keywords(self) -> Json:
        if self.choices:
            return {"type": "string", "enum": list(self.choices)}
        least = {"minLength": self.min_length} if self.min_length else {}
        return {"type": "string", **least, "maxLength": self.max_length, **self._form_keywords()}

    def _form_keywords(self) -> Json:
        if self.form is None:
            return {}
        if self.is_for_programs:
            return {"pattern": f"^(?:{self.form.pattern})$"}
        return {"x-kubernetes-validations": [self.form.validation()]}


@dataclass(frozen=True, slots=True, kw_only=True)
class Number(Node):
    """A finite number within bounds, whole unless said otherwise."""

    minimum: float
    maximum: float
    whole: bool = True

    @property
    def _wanted(self) -> str:
        return "a whole number" if self.whole else "a number"

    @property
    def _in_bounds(self) -> str:
        return f"give {self._wanted} from {self.minimum:,} to {self.maximum:,}"

    def problems(self, value: Any, path: str) -> Iterator[Problem]:
        # A boolean is an int in Python, but "gpus: yes" is a mistake and not one GPU.
        if isinstance(value, bool) or not isinstance(value, int | float):
            remedy = self._unquoted(value) or self.remedy or self._in_bounds
            yield self.wrong_type(value, path, wanted=self._wanted, remedy=remedy)
        elif complaint := self._complaint(value):
            yield Problem(path, value, *complaint)

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
        if self.whole and not isinstance(value, int):
            rounded = int(value) if value.is_integer() else None
            fits = rounded is not None and self.minimum <= rounded <= self.maximum
            remedy = f"write {rounded}" if fits else self._in_bounds
            return Complaint(f"{shown(value)} is not a whole number", remedy)
        if value < self.minimum:
            return Complaint(f"{shown(value)} {self._too_small()}", self.remedy or self._in_bounds)
        if value > self.maximum:
            return Complaint(f"{shown(value)} is more than {self.maximum:,}", self._in_bounds)
        return None

    def _too_small(self) -> str:
        if self.minimum == 0:
            return "is negative"
        if self.minimum == 1 and self.whole:
            return "is not a positive number"
        return f"is less than {self.minimum:,}"

    def keywords(self) -> Json:
        kind = {"type": "integer", "format": "int64"} if self.whole else {"type": "number"}
        return {**kind, "minimum": self.minimum, "maximum": self.maximum}


@dataclass(frozen=True, slots=True, kw_only=True)
class Decimal(Number):
    """A number that need not be whole: a float in the program, and written as 60 rather than 60.0."""

    whole: bool = False

    def read(self, value: Any) -> float:
        return float(value)

    def write(self, value: float) -> float:
        return plainest(value)


def plainest(number: float) -> int | float:
    return int(number) if number.is_integer() else number


@dataclass(frozen=True, slots=True, kw_only=True)
class Flag(Node):
    """True or false."""

    def problems(self, value: Any, path: str) -> Iterator[Problem]:
        if not isinstance(value, bool):
            yield self.wrong_type(
                value, path, wanted="a boolean", remedy="write true or false, without quotes"
            )

    def keywords(self) -> Json:
        return {"type": "boolean"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantity(Node):
    """An amount as Kubernetes writes it: a number, or a string with a unit, which is not checked."""

    def problems(self, value: Any, path: str) -> Iterator[Problem]:
        if isinstance(value, bool) or not isinstance(value, int | float | str):
            yield self.wrong_type(
                value, path, wanted="an amount", remedy='give a number, or a string such as "4Gi"'
            )

    def keywords(self) -> Json:
        return {"x-kubernetes-int-or-string": True, "maxLength": 64}


@dataclass(frozen=True, slots=True, kw_only=True)
class Foreign(Node):
    """Any JSON, which another program writes."""

    def problems(self, value: Any, path: str) -> Iterator[Problem]:
        yield from foreign_values(value, path)

    def keywords(self) -> Json:
        return {"x-kubernetes-preserve-unknown-fields": True}
