"""
Recognises checkpoints below a path, and the sign by which one is complete.

A *unit* is one checkpoint: a file, a folder, or (without a pattern) all files below the path. A
:class:`Sign` describes one way to see that a unit is complete; frameworks differ only in their
signs. Logs may lie in the same folders, grow at every step, and never belong to a checkpoint.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import TypeVar

from dljob_wire.checkpoints import MARKER, Checkpoint, Complete

LOG = re.compile(
    r"\.(csv|tsv|log|txt|jsonl|ndjson|out|err|html|png|svg|pid|lock)$|\.tfevents\."
    r"|^(metrics|log|logs|all_results|train_results|eval_results)\.json$|^hparams\.yaml$",
    re.IGNORECASE,
)
"""Names of log files in the folders of checkpoints."""
LOG_FOLDERS = frozenset({".cache", ".git", "__pycache__", "mlruns", "tensorboard", "wandb"})
UNFINISHED = re.compile(r"(^|[._-])tmp([._-]|$)|\.(part|partial|temp)$|~$", re.IGNORECASE)
"""Names that programs give to files before a rename; such a file is never a checkpoint."""
MAY_BE_EMPTY = re.compile(r"^(__init__\.py|\.git\w+|_SUCCESS|\.gitkeep)$")
DIGITS = re.compile(r"\d+")

T = TypeVar("T")


@dataclass(frozen=True)
class Sign:
    """The sign of a complete unit."""

    patterns: tuple[str, ...] = ()
    """The default patterns of unit names; empty if all files below the path are one unit."""
    named: str = ""
    """An expression for the last part of unit names: patterns cannot express "only digits"."""
    marks: tuple[tuple[str, ...], ...] = ()
    """Groups of files in the folder of a complete unit; all files of one group must exist."""
    pointer: str = ""
    """A file directly below the path that is written when a unit is complete."""
    settles: bool = False
    """True if only unchanged files show that the unit is complete."""


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
    # A single file, unless the strategy writes shards: FSDP writes meta.pt last, DeepSpeed latest.
    Complete.LIGHTNING: Sign(("**/*.ckpt",), marks=((".metadata", "meta.pt"), ("latest",))),
    Complete.KERAS: Sign(("**/*.keras", "**/*.h5")),
    Complete.TENSORFLOW: Sign(pointer="checkpoint"),
    Complete.DEEPSPEED: Sign(pointer="latest"),
    Complete.MEGATRON: Sign(pointer="latest_checkpointed_iteration.txt"),
}
"""All but ``auto``, which resolves to one of them, and ``marker``, which the job names."""

EVIDENCE: tuple[tuple[Complete, re.Pattern[str]], ...] = (
    (Complete.MARKER, re.compile(rf"(^|/){re.escape(MARKER)}$")),
    # Other programs use Trainer's folder names as well, such as diffusers with Accelerate.
    (Complete.ACCELERATE, re.compile(r"(^|/)checkpoint[-_]\d+/random_states_\d+\.pkl$")),
    (
        Complete.HUGGINGFACE,
        re.compile(
            r"(^|/)checkpoint-\d+/(training_args\.bin|trainer_state\.json"
            # Shards of FSDP, but not in a Trainer's subfolder, where Trainer's own mark follows.
            r"|[^/]+/(\.metadata|__\d+_\d+\.distcp))$"
        ),
    ),
    (Complete.LIGHTNING, re.compile(r"(^|/)([^/]*epoch=\d+[^/]*|last(-v\d+)?)\.ckpt(/|$)")),
    (Complete.MEGATRON, re.compile(r"^(iter_\d{7}/|latest_checkpointed_iteration\.txt$)")),
    (Complete.DEEPSPEED, re.compile(r"^[^/]+/[^/]*(zero_pp|mp)_rank_\d+[^/]*_states\.pt$")),
    (Complete.DCP, re.compile(r"(^|/)(\.metadata|__\d+_\d+\.distcp)$")),
    (Complete.TENSORFLOW, re.compile(r"^[^/]+\.data-\d{5}-of-\d{5}$")),
)
"""Files that only one framework writes, the most specific patterns first."""


@dataclass(frozen=True)
class Signs:
    """The signs of a job's checkpoints, from the job file or from existing checkpoints."""

    complete: Complete
    sign: Sign
    patterns: tuple[str, ...]

    def group(self, files: Mapping[str, T]) -> dict[str, dict[str, T]]:
        """Group files by unit, without files that belong to no unit."""
        is_sharded = self.complete is Complete.DCP and not self.patterns
        shard = dict(EVIDENCE)[Complete.DCP]
        # The folders with shards of torch.distributed.checkpoint.
        homes = {name.rpartition("/")[0] for name in files if is_sharded and shard.search(name)}
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
        """Return the folders that have the name of a checkpoint but none of its files."""
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
        """Return the missing marks of the unit; empty if none is missing or needed."""
        within = {name[len(unit) :].lstrip("/") for name in files}
        if not self.sign.marks or within == {""}:
            return ""
        lacking = [tuple(mark for mark in group if mark not in within) for group in self.sign.marks]
        fewest = min(len(marks) for marks in lacking)
        return " and ".join(next(marks for marks in lacking if len(marks) == fewest))

    def marks_of(self, unit: str, files: Iterable[str]) -> list[str]:
        """Return the existing marks of the unit by their full names."""
        names = {f"{unit}/{mark}".lstrip("/") for group in self.sign.marks for mark in group}
        return sorted(names & set(files))


def resolve(saving: Checkpoint, news: Iterable[str], *, known: Iterable[str]) -> Signs:
    """Choose the signs of a job's checkpoints; ``auto`` examines the new files first, then all."""
    complete = saving.complete
    if complete is Complete.AUTO:
        complete = recognise(news) or recognise(known) or Complete.SETTLED
    sign = SIGNS.get(complete) or _sign_of_marker(saving, known)
    patterns = (saving.files,) if saving.files else sign.patterns
    return Signs(complete, sign, patterns)


def _sign_of_marker(saving: Checkpoint, known: Iterable[str]) -> Sign:
    """Find the marker in the folder of each unit, or directly below the path for all units."""
    if saving.marker_file in known or not saving.files:
        inside = any(name.endswith(f"/{saving.marker_file}") for name in known)
        if saving.marker_file in known or not inside:
            return Sign(pointer=saving.marker_file)
        return Sign(("*",), marks=((saving.marker_file,),))
    return Sign(marks=((saving.marker_file,),))


def recognise(names: Iterable[str]) -> Complete | None:
    """Return the framework that writes files with these names."""
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
    """Return True for a log or an unfinished file, unless a pattern names the file."""
    if is_unfinished(name):
        return True
    *folders, last = name.split("/")
    if not LOG_FOLDERS.isdisjoint(folders):
        return True
    return bool(LOG.search(last)) and not any(
        LOG.search(pattern) and find_unit(name, (pattern,)) == name for pattern in patterns
    )


def find_unit(name: str, patterns: tuple[str, ...]) -> str | None:
    """Return the part of the name that a pattern matches; all files are one unit without one."""
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
    """Return the smallest number of parts that the pattern matches; 0 if it does not match."""
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


def _find_home(name: str, homes: Iterable[str]) -> str | None:
    folder = name.rpartition("/")[0]
    above = [home for home in homes if not home or folder == home or folder.startswith(f"{home}/")]
    return max(above, key=len, default=None)


def normalise(name: str) -> str:
    """Return the name without its numbers, such as a step or a rank."""
    return DIGITS.sub("#", name)
