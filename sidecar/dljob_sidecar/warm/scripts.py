"""Splits the command of a training into the interpreter and the script for a spare."""

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
    """A command, split into the interpreter and its program."""

    interpreter: tuple[str, ...]
    module: str
    """Empty for a file, which is then the first argument."""
    arguments: tuple[str, ...]


def take_apart(command: Sequence[str]) -> Script | None:
    """Return the parts of ``python [options] script …``; None for other commands."""
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
