"""
Recognises checkpoints below a path, and the sign by which one is complete.

A *unit* is one checkpoint: a file, a folder, or (without a pattern) all files below the path. Each
way to see that a unit is complete is a :class:`Sign`, as a value; frameworks differ in nothing else.
Logs lie in the same folders as checkpoints, grow at every step, and never are a part of one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import TypeVar

from dlwire.training import MARKER, Complete, Saving

LOG = re.compile(
    r"\.(csv|tsv|log|txt|jsonl|ndjson|out|err|html|png|svg|pid|lock)$|\.tfevents\."
    r"|^(metrics|log|logs|all_results|train_results|eval_results)\.json$|^hparams\.yaml$",
    re.IGNORECASE,
)
"""Names of files in the same folders that are no checkpoints."""
LOG_FOLDERS = frozenset({".cache", ".git", "__pycache__", "mlruns", "tensorboard", "wandb"})
UNFINISHED = re.compile(r"(^|[._-])tmp([._-]|$)|\.(part|partial|temp)$|~$", re.IGNORECASE)
"""How programs name what they are about to rename: seen as still as can be, it is no checkpoint."""
MAY_BE_EMPTY = re.compile(r"^(__init__\.py|\.git\w+|_SUCCESS|\.gitkeep)$")
DIGITS = re.compile(r"\d+")

T = TypeVar("T")


@dataclass(frozen=True)
class Sign:
    """How one sees that a unit is complete."""

    patterns: tuple[str, ...] = ()
    """The names of units, where the job does not say them; empty: all files below the path are one unit."""
    named: str = ""
    """An expression for the last part of their names, since patterns cannot say "only digits"."""
    marks: tuple[tuple[str, ...], ...] = ()
    """Files in the folder of a complete unit: all of one of these groups."""
    pointer: str = ""
    """A file right below the path that is written when a unit is complete."""
    settles: bool = False
    """True if only the rest of its files shows that it is complete."""


SIGNS: Mapping[Complete, Sign] = {
    Complete.SETTLED: Sign(settles=True),
    Complete.RENAME: Sign(("*",)),
    Complete.HUGGINGFACE: Sign(
        ("**/checkpoint-*",), named=r"checkpoint-\d+", marks=(("trainer_state.json",),)
    ),
    Complete.ACCELERATE: Sign(
        ("**/checkpoint*",), named=r"checkpoint[-_]\d+", marks=(("random_states_0.pkl",),)
    ),
    Complete.DCP: Sign(marks=((".metadata",),)),
    # A file, unless the strategy writes shards: FSDP's end with meta.pt, DeepSpeed's with latest.
    Complete.LIGHTNING: Sign(("**/*.ckpt",), marks=((".metadata", "meta.pt"), ("latest",))),
    Complete.KERAS: Sign(("**/*.keras", "**/*.h5")),
    Complete.TENSORFLOW: Sign(pointer="checkpoint"),
    Complete.DEEPSPEED: Sign(pointer="latest"),
    Complete.MEGATRON: Sign(pointer="latest_checkpointed_iteration.txt"),
}
"""All but ``auto``, which becomes one of them, and ``marker``, whose file the job may name."""

EVIDENCE: tuple[tuple[Complete, re.Pattern[str]], ...] = (
    (Complete.MARKER, re.compile(rf"(^|/){re.escape(MARKER)}$")),
    # Others name their folders as Trainer does: diffusers with Accelerate, and people.
    (Complete.ACCELERATE, re.compile(r"(^|/)checkpoint[-_]\d+/random_states_\d+\.pkl$")),
    (
        Complete.HUGGINGFACE,
        re.compile(
            r"(^|/)checkpoint-\d+/(training_args\.bin|trainer_state\.json"
            # Shards of FSDP: of those in a folder below, a Trainer's own mark comes later.
            r"|[^/]+/(\.metadata|__\d+_\d+\.distcp))$"
        ),
    ),
    (Complete.LIGHTNING, re.compile(r"(^|/)([^/]*epoch=\d+[^/]*|last(-v\d+)?)\.ckpt(/|$)")),
    (Complete.MEGATRON, re.compile(r"^(iter_\d{7}/|latest_checkpointed_iteration\.txt$)")),
    (Complete.DEEPSPEED, re.compile(r"^[^/]+/[^/]*(zero_pp|mp)_rank_\d+[^/]*_states\.pt$")),
    (Complete.DCP, re.compile(r"(^|/)(\.metadata|__\d+_\d+\.distcp)$")),
    (Complete.TENSORFLOW, re.compile(r"^[^/]+\.data-\d{5}-of-\d{5}$")),
)
"""Which files only one framework writes, the more particular ones first."""


@dataclass(frozen=True)
class Signs:
    """The signs of a job's checkpoints, from its file or from its checkpoints themselves."""

    complete: Complete
    sign: Sign
    patterns: tuple[str, ...]

    def group(self, files: Mapping[str, T]) -> dict[str, dict[str, T]]:
        """Sort files by the unit that they belong to; what belongs to none is left out."""
        is_sharded = self.complete is Complete.DCP and not self.patterns
        homes = _find_homes(files) if is_sharded else ()
        marks = {mark for group in self.sign.marks for mark in group}
        units: dict[str, dict[str, T]] = {}
        for name, what in files.items():
            if is_noise(name, self.patterns) and name.rpartition("/")[2] not in marks:
                continue
            unit = _find_home(name, homes) if is_sharded else find_unit(name, self.patterns)
            if unit is not None and self._is_named(unit):
                units.setdefault(unit, {})[name] = what
        return units

    def find_hollow(self, folders: Iterable[str], units: Iterable[str]) -> list[str]:
        """Return the folders that are named as a checkpoint and hold nothing of one."""
        known = set(units)
        if not self.patterns:
            alike = {normalise(unit) for unit in known}
            return [name for name in folders if name not in known and normalise(name) in alike]
        found = (name for name in folders if name not in known and self._is_named(name))
        return [name for name in found if find_unit(name, self.patterns) == name]

    def _is_named(self, unit: str) -> bool:
        expression = self.sign.named if self.patterns == self.sign.patterns else ""
        return not expression or bool(re.fullmatch(expression, unit.rpartition("/")[2]))

    def missing(self, unit: str, files: Iterable[str]) -> str:
        """Name the missing marks of a complete unit; empty if none is missing or needed."""
        within = {name[len(unit) :].lstrip("/") for name in files}
        if not self.sign.marks or within == {""}:
            return ""
        lacking = [tuple(mark for mark in group if mark not in within) for group in self.sign.marks]
        fewest = min(len(marks) for marks in lacking)
        return " and ".join(next(marks for marks in lacking if len(marks) == fewest))

    def marks_of(self, unit: str, files: Iterable[str]) -> list[str]:
        """Return the existing marks, by their full names."""
        names = {f"{unit}/{mark}".lstrip("/") for group in self.sign.marks for mark in group}
        return sorted(names & set(files))


def resolve(saving: Saving, news: Iterable[str], *, known: Iterable[str]) -> Signs:
    """Choose the signs of a job's checkpoints; ``auto`` looks at the new files first, then at all."""
    complete = saving.complete
    if complete is Complete.AUTO:
        complete = recognise(news) or recognise(known) or Complete.SETTLED
    sign = SIGNS.get(complete) or _sign_of_marker(saving, known)
    patterns = (saving.files,) if saving.files else sign.patterns
    return Signs(complete, sign, patterns)


def _sign_of_marker(saving: Saving, known: Iterable[str]) -> Sign:
    """The marker is in the folder of each unit, or is one for all right below the path."""
    if saving.marker in known or not saving.files:
        inside = any(name.endswith(f"/{saving.marker}") for name in known)
        if saving.marker in known or not inside:
            return Sign(pointer=saving.marker)
        return Sign(("*",), marks=((saving.marker,),))
    return Sign(marks=((saving.marker,),))


def recognise(names: Iterable[str]) -> Complete | None:
    """Return the framework that writes files of these names."""
    finished = [name for name in names if not is_unfinished(name)]
    for complete, expression in EVIDENCE:
        if any(map(expression.search, finished)):
            return complete
    return None


# --- names --------------------------------------------------------------------------------


def is_unfinished(name: str) -> bool:
    return any(map(UNFINISHED.search, name.split("/")))


def is_within(name: str, unit: str) -> bool:
    return not unit or name == unit or name.startswith(f"{unit}/")


def is_noise(name: str, patterns: tuple[str, ...]) -> bool:
    """Return whether a file is a log or unfinished; a pattern may name a log on purpose."""
    if is_unfinished(name):
        return True
    *folders, last = name.split("/")
    if not LOG_FOLDERS.isdisjoint(folders):
        return True
    return bool(LOG.search(last)) and not any(
        LOG.search(pattern) and find_unit(name, (pattern,)) == name for pattern in patterns
    )


def find_unit(name: str, patterns: tuple[str, ...]) -> str | None:
    """Return the beginning of the name that a pattern means; all is one unit without a pattern."""
    if not patterns:
        return ""
    parts = name.split("/")
    for pattern in patterns:
        length = _match(tuple(pattern.strip("/").split("/")), tuple(parts))
        if length:
            return "/".join(parts[:length])
    return None


@lru_cache(maxsize=4096)
def _match(pattern: tuple[str, ...], parts: tuple[str, ...]) -> int:
    """Return how many of the parts the pattern takes, at least; 0 if it does not match."""
    if not parts:
        return 0
    if pattern[0] == "**":
        lengths = (_match(pattern[1:], parts[skip:]) for skip in range(len(parts)))
        found = next(((skip, length) for skip, length in enumerate(lengths) if length), None)
        return sum(found) if found else 0
    if not fnmatchcase(parts[0], pattern[0]):
        return 0
    if len(pattern) == 1:
        return 1
    rest = _match(pattern[1:], parts[1:])
    return rest + 1 if rest else 0


def _find_homes(files: Iterable[str]) -> frozenset[str]:
    """Return the folders that hold shards of torch.distributed.checkpoint."""
    shard = dict(EVIDENCE)[Complete.DCP]
    return frozenset(name.rpartition("/")[0] for name in files if shard.search(name))


def _find_home(name: str, homes: Iterable[str]) -> str | None:
    folder = name.rpartition("/")[0]
    above = [home for home in homes if not home or folder == home or folder.startswith(f"{home}/")]
    return max(above, key=len, default=None)


def normalise(name: str) -> str:
    """Return the name without what counts in it, such as a step or a rank."""
    return DIGITS.sub("#", name)
