"""
One simulation of a comparison: a policy in a scenario, and the key of its result.

:mod:`dlctl.verbs.studies.comparing.compare` makes the tasks of a command line, :mod:`dlsim.comparing.running` performs
them. A result is known again by its key, which is a digest of everything that determines it: the
scenario, the content of its files, the policy as it was typed, and the program. Of the program
those files count that the simulator and the policy consist of (:mod:`.sources`), without their
docstrings and comments, so a change to one policy makes only its own results stale, and a change to what policies share those of all that use
it.
"""

import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from dlcore import policies
from dlsim import policyfile
from dlsim.bounding.bounds import REFERENCE, bound_mean_jct
from dlsim.clusters import Machines
from dlsim.comparing.sources import read_sources
from dlsim.errors import BadInput
from dlsim.inputs import documents, yamlfiles
from dlsim.inputs.shipped import find_folder
from dlsim.jobs.workloads import Workload, name_of
from dlsim.results.scoring import MEASURED
from dlsim.scenarios import Scenario, build_setting, charge_trials, read_workload
from dlsim.simulating import Contestant, simulate

Values = dict[str, Any]
"""A result as JSON has it: the fields of a :class:`~dlsim.results.scoring.Score`."""

_NOT_IN_RESULTS = (
    *("results.plots", "results.looks", "results.recording", "premises", "results.writing"),
    *("policyfile", "comparing", "bounding"),
)
"""Parts of the simulator that no policy's result depends on."""

_IN_BOUNDS = ("bounding",)
"""Those of them that bounds depend on."""

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
        """By what its result is known."""
        content = {
            "policy": self.policy,
            "program": self._digest_program(),
            "trace": self.trace,
            "files": [digest_input(path) for path in self.scenario.files],
            **_describe(self.scenario),
        }
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()

    def _digest_program(self) -> str:
        # A bound plays its reference once, to have prices to begin with.
        policy = self.policy or REFERENCE
        own = policyfile.parse(policy)
        if own is not None:
            return digest_own(own.path)
        return digest_program(policy.partition(":")[0], bounds=self.policy is None)

    def labels(self) -> Values:
        """Tell in which scenario it was, as rows of results have it."""
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
            "seed": scenario.seed,
        }

    def bound(self) -> "Task":
        """Make the task of finding the bound; what policies believe makes no difference to it."""
        known = replace(self.scenario, speed_error=0.0, size_error=0.0, sizes_known=True)
        return Task(scenario=known, part=self.part)

    def perform(self) -> Values:
        """Play it, and return the fields of its score; or find the bound."""
        setting = build_setting(self.scenario)
        workload = _read_once(self.scenario)
        setting = charge_trials(self.scenario, setting, workload=workload)
        if self.policy is None:
            bound = bound_mean_jct(workload, setting)
            return {"bound_avg_jct_s": bound.avg_jct_s, "bound_jobs": bound.jobs}
        contestant = Contestant(self.policy, policyfile.read(self.policy))
        (outcome,) = simulate(workload, setting, [contestant])
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
def digest_program(policy: str, *, bounds: bool = False) -> str:
    """Digest the source that determines what a policy does in a simulation, or a bound."""
    left_out = set(_NOT_IN_RESULTS) - set(_IN_BOUNDS if bounds else ())
    kind: Any = policies.POLICIES[policy]
    return _digest([*read_sources(kind.__module__, left_out=left_out), *_read_speeds()])


def digest_own(path: Path) -> str:
    """Digest the file of a user's own policy, with all that it imports, and the simulator."""
    files = policyfile.files_of(path)
    imported = {name for file in files for name in policyfile.imports_of(file)}
    sources = read_sources(*sorted(imported), left_out=_NOT_IN_RESULTS)
    return _digest([*((file.name, file.read_bytes()) for file in files), *sources, *_read_speeds()])


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
