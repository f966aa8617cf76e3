"""
Studies in a program or a notebook: simulations, comparisons, bounds, and policies of one's own.

Each is played by the very simulator behind ``dljob simulate``, ``compare`` and ``bound``.
"""

import abc
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from os import PathLike
from pathlib import Path
from typing import Any, ClassVar

from dljob.api.refusals import Problem, WrongInput, WrongUse, refusing
from dljob.core import contract
from dljob.core.checking import Law
from dljob.core.contract import Decision, View
from dljob.sim import policies
from dljob.sim.bounding.bounds import ROUNDS, Bound, bound_mean_jct
from dljob.sim.clusters import fill_nodes, parse_cluster
from dljob.sim.comparing.planning import make_rows, plan
from dljob.sim.comparing.running import Failure, run_tasks
from dljob.sim.comparing.summing import Line, sum_up
from dljob.sim.comparing.tasks import Task, Values
from dljob.sim.engine.settings import Setting
from dljob.sim.jobs.workloads import Workload
from dljob.sim.scenarios import Scenario, build_setting, charge_trials, read_workload
from dljob.sim.simulating import Contestant, Outcome
from dljob.sim.simulating import simulate as play

Trace = str | PathLike[str] | Scenario
"""A trace, or everything that determines a simulation except the policy."""

Cluster = int | str | None
"""A number of GPUs in nodes of eight, or such as ``"2x8:V100,1x4:K80"``; ``None``: as the command has it."""

DEFAULT_GPUS = 64
USUAL_POLICY = "foresight"


class Policy(abc.ABC):
    """
    A policy of one's own, for :func:`simulate`: a class with one method.

    ``name`` is the name of the class unless the class sets another one. See docs/policies.md.
    """

    name: ClassVar[str] = ""
    paper: ClassVar[str] = "none"
    needs: ClassVar[str] = "nothing"
    breaks: ClassVar[frozenset[Law]] = frozenset()

    def __init_subclass__(cls, **given: Any) -> None:
        super().__init_subclass__(**given)
        if "name" not in vars(cls):
            cls.name = cls.__name__

    @abc.abstractmethod
    def allocate(self, view: View) -> Decision:
        """Decide the number of GPUs of each job."""


def simulate(
    trace: Trace,
    policies: str | contract.Policy | Sequence[str | contract.Policy] = USUAL_POLICY,
    *,
    cluster: Cluster = None,
    records: bool = False,
) -> list[Outcome]:
    """
    Play a trace once under each policy; ``score`` of an outcome holds its figures.

    With ``records`` each outcome also has all that happened, for :meth:`dljob.Timeline.of`.

    A policy is a name with its options (``tiresias:thresholds=3250,7200``), ``FILE.py:Class``, or an
    instance of a class of one's own.
    """
    several = policies if isinstance(policies, Sequence) else [policies]
    contestants = [
        _contestant(each) for each in ([policies] if isinstance(policies, str) else several)
    ]
    with refusing():
        scenario = _scenario(trace, cluster)
        workload, setting = _prepare(scenario)
        outcomes = list(play(workload, setting, contestants=contestants, records=records))
    if outcomes and not outcomes[0].record.jobs:
        gpus = outcomes[0].record.gpus
        raise WrongInput(
            Problem(
                f"has no job that fits into {gpus} GPUs",
                "give a larger cluster",
                source=str(scenario.trace),
            )
        )
    return outcomes


@dataclass(frozen=True, slots=True)
class Comparison:
    """The result of a comparison."""

    rows: list[Values]
    """The figures of each simulation, with its scenario."""
    lines: list[Line]
    """A line for each policy: geometric means of its figures over those of the first policy."""
    failures: Mapping[str, str] = field(default_factory=dict)
    """The reason for each policy without a result."""


def compare(
    traces: Trace | Sequence[Trace],
    policies: Sequence[str],
    *,
    cluster: Cluster = None,
    seeds: int = 1,
    processes: int = 1,
) -> Comparison:
    """
    Play every trace under every policy with each seed, and sum up how they compare with the first policy.

    The simulations may run in several processes; therefore a policy of one's own is given as
    ``FILE.py:Class``.
    """
    if not policies or not all(isinstance(each, str) for each in policies):
        raise WrongUse(
            Problem("policies are not all named", "give names, or FILE.py:Class", path="policies")
        )
    several = [traces] if isinstance(traces, str | PathLike | Scenario) else list(traces)
    for each in policies:
        _contestant(each)
    tasks: list[Task] = []
    for trace in several:
        scenario = _scenario(trace, cluster)
        axes = {"seed": range(scenario.seed, scenario.seed + seeds)}
        tasks += plan(scenario, [scenario.trace], axes=axes, policies=policies, bound=False)
    results: dict[int, Values] = {}
    failures: dict[str, str] = {}
    for number, result in run_tasks(list(enumerate(tasks)), processes=processes):
        if isinstance(result, Failure):
            failures[str(tasks[number].policy)] = result.message
        else:
            results[number] = result
    rows = make_rows({tasks[n]: results[n] for n in sorted(results)})
    return Comparison(rows, sum_up(rows, references=(policies[0],)), failures)


def bound(trace: Trace, *, cluster: Cluster = None, rounds: int = ROUNDS) -> Bound:
    """Compute a lower bound on the average completion time of a trace under any policy."""
    with refusing():
        workload, setting = _prepare(_scenario(trace, cluster))
        return bound_mean_jct(workload, setting, rounds=rounds)


def _scenario(trace: Trace, cluster: Cluster) -> Scenario:
    try:
        machines = parse_cluster(cluster) if isinstance(cluster, str) else None
        if isinstance(cluster, int):
            machines = fill_nodes(cluster)
    except ValueError as error:
        message, _, remedy = str(error).partition("; ")
        raise WrongUse(Problem(message, remedy, path="cluster")) from error
    if isinstance(trace, Scenario):
        return trace if machines is None else replace(trace, machines=machines)
    return Scenario(trace=Path(trace), machines=machines or fill_nodes(DEFAULT_GPUS))


def _prepare(scenario: Scenario) -> tuple[Workload, Setting]:
    setting = build_setting(scenario)
    workload = read_workload(scenario, setting)
    return workload, charge_trials(scenario, setting, workload=workload)


def _contestant(policy: str | contract.Policy) -> Contestant:
    if isinstance(policy, str):
        try:
            with refusing():
                return Contestant(policy, policies.read(policy))
        except ValueError as error:
            message, _, remedy = str(error).partition("; ")
            raise WrongUse(Problem(message, remedy, path="policies")) from error
    return Contestant(policy.name, policies.guard(policy, _source_of(type(policy))))


def _source_of(kind: type) -> Path:
    try:
        return Path(inspect.getfile(kind.allocate))  # type: ignore[attr-defined]
    except (AttributeError, OSError, TypeError):
        return Path(kind.__name__)
