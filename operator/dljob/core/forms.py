"""
The forms of the strings of a DLJob: names of Kubernetes, paths, programs, regular expressions.

A rule that a pattern can express is a :class:`Form`, which Kubernetes checks too; any other rule is a function that
returns a complaint.

Users' regular expressions are parsed, not compiled. Compiling one can take seconds: a set such as
``[!-\\U0010ffff]`` costs time for each character in it, and an expression of 1,000 characters can hold a hundred such
sets. Parsing takes less than a hundredth of a second. So the controller parses expressions and bounds the cost of
compiling them. The SideCar's helper compiles them, in a process of its own whose processor time is limited.
"""

import re
import re._constants as opcodes  # type: ignore[import-not-found]
import re._parser as parser  # type: ignore[import-not-found]
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, Final

from dljob_wire.checkpoints import LONGEST_EXPRESSION
from dljob_wire.kinds import Complaint, Form
from dljob_wire.problems import shown


def _as_label(text: str) -> str:
    """Turn a name into the nearest one that Kubernetes takes."""
    name = re.sub(r"[^a-z0-9]+", "-", text.lower())[:63].strip("-")
    return f"write {name}" if name else "give a name such as resnet18-imagenet"


LABEL: Final = Form(
    r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?",
    "is no name that Kubernetes takes (small letters, digits and '-' in between, at most 63)",
    _as_label,
)
LABEL_KEY: Final = Form(
    r"([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?",
    "is no name of a label or annotation",
    "give letters, digits, '-', '_' and '.', with a domain and '/' before it if you like",
)
LABEL_VALUE: Final = Form(
    r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?",
    "is no value of a label",
    "give at most 63 letters, digits, '-', '_' and '.', first and last a letter or digit",
)
CONTROLLER: Final = Form(
    r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/[!-.0-~]([!-~]*[!-~])?",
    "is no name of a controller",
    "write a domain, '/' and a name, such as kueue.x-k8s.io/multikueue",
)
GPU_TYPE: Final = Form(
    r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?",
    "is no type of GPU",
    "give one type an item, such as V100 or NVIDIA-H200",
)
WORD: Final = Form(
    r"[A-Za-z_][A-Za-z0-9_]*",
    "is no name of a metric",
    "give letters, digits and '_', such as top5",
)
MODULE: Final = Form(
    r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*",
    "is no name of a Python module",
    "write it as after import, such as torch or torch.distributed",
)
PROGRAM: Final = Form(
    r"(/[^/\x00-\x1f]+)+",
    "is no absolute path of a program",
    "write the whole path, such as /opt/envs/train/bin/python",
)
IMAGE: Final = Form(
    r"[A-Za-z0-9][A-Za-z0-9._/:@-]*",
    "is no name of an image",
    "write it as podman or docker lists it, such as docker.io/pytorch/pytorch:2.9.0",
)
MOUNTED: Final = Form(
    r"(/[^/\x00-\x1f]+)+",
    "is no absolute path of a folder",
    "write the whole path without a / at its end, such as /data",
)
VARIABLE: Final = Form(
    r"[A-Za-z_][A-Za-z0-9_]*",
    "is no name of a variable",
    "write its name alone, such as WANDB_API_KEY",
)
TYPE_PART: Final = Form(
    r"[!-~]([ -~]*[!-~])?",
    "holds characters that are not plain",
    "give letters, digits and signs of ASCII, without spaces around them",
)
SECONDS: Final = Form(
    r"[0-9]+(\.[0-9]+)?([eE][-+]?[0-9]{1,2})?",
    "is not a number of seconds",
    'give the seconds since the simulation began, such as "90"',
)


def cannot_compile(text: str) -> Complaint | None:
    """Complain about a regular expression that Python cannot compile in a bounded time."""
    if len(text) > LONGEST_EXPRESSION:
        return None  # The complaint about the length is more helpful.
    try:
        find_groups(text)
    except WrongExpression as error:
        return Complaint(
            f"{shown(text)} {error}", "correct it, and write it in single quotes in YAML"
        )
    return None


def not_a_variable(text: str) -> Complaint | None:
    """Complain about a name that Kubernetes refuses when it creates the pod."""
    if text and (not text.isascii() or not text.isprintable() or "=" in text):
        wrong = f"{shown(text)} is no name of a variable"
        return Complaint(wrong, "give letters, digits and '_', without '='")
    return None


# --- regular expressions -------------------------------------------------------------------

MOST_CHARACTERS: Final = 1_200_000
"""In all ranges of all sets together: one range over all of Unicode, and some more."""
DEEPEST: Final = 100

_LOOKS: Final = frozenset({opcodes.ASSERT, opcodes.ASSERT_NOT})


class WrongExpression(ValueError):
    """An expression cannot be compiled in a bounded time; the message says why, and begins with the verb."""


@lru_cache(maxsize=1024)
def find_groups(text: str) -> frozenset[str]:
    """Name the groups of an expression; raises :class:`WrongExpression`."""
    if len(text) > LONGEST_EXPRESSION:
        raise WrongExpression(f"has more than {LONGEST_EXPRESSION:,} characters")
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
