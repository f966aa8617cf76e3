"""
One simulation of a comparison: a policy in a scenario, and the key of its result.

:mod:`dljob_lab.verbs.compare` makes the tasks of a command line, :mod:`dljob_lab.comparing.running` performs
them. A result is known again by its key, which is a digest of everything that determines it: the
scenario, the content of its files, the policy as it was typed, and the sources of the program.
"""

import hashlib
import json
import math
import sys
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from dljob.sim import policies
from dljob.sim.clusters import Machines
from dljob.sim.errors import BadInput
from dljob.sim.inputs import documents, yamlfiles
from dljob.sim.inputs.shipped import find_folder
from dljob.sim.jobs.workloads import Workload, name_of
from dljob.sim.results.scoring import MEASURED
from dljob.sim.scenarios import Scenario, build_setting, charge_trials, read_workload
from dljob.sim.simulating import Contestant, simulate
from dljob_lab.bounding.bounds import bound_mean_jct

Values = dict[str, Any]
"""A result as JSON has it: the fields of a :class:`~dljob.sim.results.scoring.Score`."""

_NO_SPEEDS = ("peers", "suite")
"""Folders of shipped data that hold traces; those of a task are in its key by themselves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A policy, as its user typed it, in a scenario; or the bound that no policy can go below."""

    scenario: Scenario
    policy: str | None = None
    """``None``: the lower bound on the average completion time."""
    part: str = ""
    """Of which part of a suite it is, which determines nothing."""

    @property
    def trace(self) -> str:
        """The name of the trace."""
        return name_of(self.scenario.trace)

    def key(self) -> str:
        """Return the key by which a result is found again."""
        content = {
            "policy": self.policy,
            "program": digest_program(),
            "own": self._digest_own(),
            "trace": self.trace,
            "files": [digest_input(path) for path in self.scenario.files],
            **_describe(self.scenario),
        }
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()

    def _digest_own(self) -> str | None:
        own = policies.parse(self.policy or "")
        return None if own is None else digest_own(own.path)

    def labels(self) -> Values:
        """Describe the scenario as rows of results have it."""
        scenario = self.scenario
        return {
            "trace": self.trace,
            "part": self.part,
            "cluster": ",".join(_write_machines(each) for each in scenario.machines),
            "placement": "counted" if scenario.counted else "packed",
            "window": scenario.window,
            "load": scenario.load,
            "restart_cost_s": scenario.restart_cost_s,
            "speed_error": scenario.speed_error,
            "size_error": scenario.size_error,
            "sizes": "known" if scenario.sizes_known else "unknown",
            "known": scenario.known,
            "seed": scenario.seed,
        }

    def bound(self) -> "Task":
        """Make the task of finding the bound; what policies believe makes no difference to it."""
        known = replace(
            self.scenario, speed_error=0.0, size_error=0.0, sizes_known=True, known="all"
        )
        return Task(scenario=known, part=self.part)

    def perform(self) -> Values:
        """Play it, and return the fields of its score; or find the bound."""
        setting = build_setting(self.scenario)
        workload = _read_once(self.scenario)
        setting = charge_trials(self.scenario, setting, workload=workload)
        if self.policy is None:
            bound = bound_mean_jct(workload, setting)
            return {"bound_avg_jct_s": bound.avg_jct_s, "bound_jobs": bound.jobs}
        contestant = Contestant(self.policy, policies.read(self.policy))
        (outcome,) = simulate(workload, setting, contestants=[contestant])
        if not outcome.record.jobs:
            raise BadInput(
                self.scenario.trace,
                f"has no job that fits into {outcome.record.gpus} GPUs",
                remedy="give a larger cluster, or the types of GPU that its jobs ask for",
            )
        return asdict(outcome.score)


def without_measured(row: Mapping[str, Any]) -> Values:
    """Leave out of a row what differs between two runs of the same simulation."""
    return {name: value for name, value in row.items() if name not in MEASURED}


def _write_machines(machines: Machines) -> str:
    kind = f":{machines.gpu_type}" if machines.gpu_type else ""
    return f"{machines.nodes}x{machines.gpus}{kind}"


_latest: list[tuple[Scenario, Workload]] = []


def _read_once(scenario: Scenario) -> Workload:
    """Read a workload, or take the one before if it is the same: tasks come trace by trace."""
    for known, workload in _latest:
        if known == scenario:
            return workload
    workload = read_workload(scenario, build_setting(scenario))
    _latest[:] = [(scenario, workload)]
    return workload


def _describe(scenario: Scenario) -> Values:
    fields = {name: getattr(scenario, name) for name in Scenario.__dataclass_fields__}
    # The files are known by their content, wherever they lie.
    for name in ("trace", "speeds", "profiles", "failures"):
        fields[name] = fields[name] is not None
    fields["limits"] = asdict(scenario.limits)
    # JSON has no infinity.
    fields["period_s"] = None if math.isinf(scenario.period_s) else scenario.period_s
    return fields


# --- digests ------------------------------------------------------------------------------


def digest_input(path: Path) -> str:
    """Digest the content of a file, or of all job files of a folder."""
    try:
        paths = yamlfiles.find_files(path) if documents.is_document(path) else [path]
        known = [(each, each.stat()) for each in paths]
        return _digest_files(tuple((p, stat.st_mtime_ns, stat.st_size) for p, stat in known))
    except OSError as error:
        message = f"cannot be read ({error.strerror or error})"
        raise BadInput(path, message, remedy="name a trace, or a folder of job files") from error


@cache
def _digest_files(files: tuple[tuple[Path, int, int], ...]) -> str:
    """Digest files once, although thousands of tasks read the same one; who changes is read again."""
    return _digest((path.name, path.read_bytes()) for path, _, _ in files)


@cache
def digest_program() -> str:
    """Digest the sources of the simulator and all policies, and the shipped speeds."""
    packages = {"dljob.core", "dljob.sim", "dljob_wire"}
    packages |= {kind.__module__.partition(".")[0] for kind in policies.POLICIES.values()}
    folders = [Path(str(sys.modules[name].__file__)).parent for name in sorted(packages)]
    paths = [(folder, path) for folder in folders for path in sorted(folder.rglob("*.py"))]
    sources = [(str(path.relative_to(folder.parent)), path.read_bytes()) for folder, path in paths]
    return _digest([*sources, *_read_speeds()])


def digest_own(path: Path) -> str:
    """Digest the file of a user's own policy, with the modules next to it that it imports."""
    return _digest((file.name, file.read_bytes()) for file in policies.files_of(path))


def _read_speeds() -> Iterable[tuple[str, bytes]]:
    folder = find_folder()
    for path in sorted(folder.rglob("*.csv")):
        inside = path.relative_to(folder)
        if inside.parts[0] not in _NO_SPEEDS:
            yield str(inside), path.read_bytes()


def _digest(parts: Iterable[tuple[str, bytes]]) -> str:
    digest = hashlib.sha256()
    for name, content in parts:
        digest.update(f"{name}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()
