"""
The benchmark that is shipped: its traces, clusters, loads and costs, and the use of each half.

``dljob compare --suite`` plays it. ``profiles/suite/suite.yaml`` is the definition, so that any
author of a scheduler can play the very same simulations, and ``docs/leaderboard.md`` the result.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from dljob.sim.clusters import parse_cluster
from dljob.sim.errors import BadInput
from dljob.sim.inputs import yamlfiles
from dljob.sim.inputs.shipped import find_folder
from dljob.sim.jobs.workloads import name_of
from dljob.sim.scenarios import Scenario
from dljob_lab.comparing.planning import plan
from dljob_lab.comparing.tasks import Task

PARTS = ("judging", "tuning")
"""Parameters may be chosen on the second alone."""


class Entry(NamedTuple):
    """A trace of the suite."""

    path: Path
    part: str
    cluster: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    """The definition of a benchmark."""

    version: int
    placements: tuple[str, ...]
    loads: tuple[float, ...]
    restart_costs: tuple[float, ...]
    seeds: tuple[int, ...]
    window: int
    reference: str
    entries: tuple[Entry, ...]
    digest: str
    """Of the definition and all its traces."""


def load_suite(path: Path | None = None) -> Suite:
    """Read a definition, by default the one that is shipped."""
    path = path or find_folder() / "suite" / "suite.yaml"
    ((_, document),) = yamlfiles.load(path)
    # Paths are relative to the folder above, where other traces and the measured speeds are.
    entries = tuple(
        Entry(path.parents[1] / each["file"], each["part"], each["cluster"])
        for each in document["traces"]
    )
    _check(path, document, entries=entries)
    return Suite(
        version=document["version"],
        placements=tuple(document["placements"]),
        loads=tuple(map(float, document["loads"])),
        restart_costs=tuple(map(float, document["restartCosts"])),
        seeds=tuple(document["seeds"]),
        window=document["window"],
        reference=document["reference"],
        entries=entries,
        digest=_digest([path, *(entry.path for entry in entries)]),
    )


def plan_suite(
    suite: Suite,
    policies: Sequence[str],
    *,
    parts: Sequence[str] = PARTS,
    window: int | None = None,
) -> list[Task]:
    """List the tasks of the suite, or of a part, with its window or a smaller one to try it."""
    axes = {"load": suite.loads, "restart_cost_s": suite.restart_costs, "seed": suite.seeds}
    tasks: list[Task] = []
    for entry in suite.entries:
        if entry.part not in parts:
            continue
        for placement in suite.placements:
            base = Scenario(
                trace=entry.path,
                machines=parse_cluster(entry.cluster),
                counted=placement == "counted",
                window=window or suite.window,
            )
            found = plan(base, [entry.path], axes=axes, policies=policies, bound=True)
            tasks += [replace(task, part=entry.part) for task in found]
    return tasks


def _check(path: Path, document: Any, *, entries: Sequence[Entry]) -> None:
    """Refuse what would give figures that mean something else than they seem to."""
    names = [name_of(entry.path) for entry in entries]
    wrong = [entry.part for entry in entries if entry.part not in PARTS]
    if wrong:
        raise BadInput(path, f"{wrong[0]!r} is no part", remedy=f"write {' or '.join(PARTS)}")
    if len(set(names)) < len(names):
        raise BadInput(path, "names a trace twice", remedy="name each trace once")
    if not set(document["placements"]) <= {"counted", "packed"}:
        raise BadInput(path, "names a placement that there is not", remedy="write counted, packed")


def _digest(paths: Sequence[Path]) -> str:
    digest = hashlib.sha256()
    for path in paths:
        digest.update(path.read_bytes())
    return digest.hexdigest()
