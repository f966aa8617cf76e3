"""
The command of a training, taken apart into the interpreter and the script that a spare interpreter can become.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

PYTHON = re.compile(r"python(\d(\.\d+)?)?")
FLAGS = re.compile(r"-[bBdEiOsuv]+")
FLAGS_WITH_VALUE = frozenset({"-W", "-X"})


@dataclass(frozen=True)
class Script:
    """A command taken apart into the interpreter and what it shall run."""

    interpreter: tuple[str, ...]
    module: str
    """Empty where it is a file, which then is the first of the arguments."""
    arguments: tuple[str, ...]


def take_apart(command: Sequence[str]) -> Script | None:
    """Return the parts of ``python [options] script …``, or None where it is not of that form."""
    if not PYTHON.fullmatch(Path(command[0]).name):
        return None
    rest = list(command[1:])
    interpreter = [command[0]]
    while rest and rest[0] != "-m":
        if FLAGS.fullmatch(rest[0]):
            interpreter.append(rest.pop(0))
        elif rest[0] in FLAGS_WITH_VALUE and len(rest) > 1:
            interpreter += [rest.pop(0), rest.pop(0)]
        else:
            break
    if rest[:1] == ["-m"]:
        return Script(tuple(interpreter), rest[1], tuple(rest[1:])) if len(rest) > 1 else None
    if not rest or rest[0].startswith("-"):
        return None
    return Script(tuple(interpreter), "", tuple(rest))
