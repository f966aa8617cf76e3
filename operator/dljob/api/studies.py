"""
Simulations in a program or a notebook, by the very simulator behind ``dljob simulate``, and policies of one's own.
"""

import abc
import inspect
from collections.abc import Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any, ClassVar

from dljob.api.refusals import Problem, WrongInput, WrongUse, refusing
from dljob.core import contract
from dljob.core.checking import Law
from dljob.core.contract import Decision, View
from dljob.sim import policies
from dljob.sim.clusters import fill_nodes, parse_cluster
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
        make_contestant(each) for each in ([policies] if isinstance(policies, str) else several)
    ]
    with refusing():
        scenario = make_scenario(trace, cluster)
        workload, setting = prepare(scenario)
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


def make_scenario(trace: Trace, cluster: Cluster) -> Scenario:
    """Read the cluster, and name what a trace leaves open."""
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


def prepare(scenario: Scenario) -> tuple[Workload, Setting]:
    """Read all that a simulation plays."""
    setting = build_setting(scenario)
    workload = read_workload(scenario, setting)
    return workload, charge_trials(scenario, setting, workload=workload)


def make_contestant(policy: str | contract.Policy) -> Contestant:
    """Build a policy, or hold one that the caller built to the protocol."""
    if isinstance(policy, str):
        try:
            with refusing():
                return Contestant(policy, policies.read(policy))
        except ValueError as error:
            message, _, remedy = str(error).partition("; ")
            raise WrongUse(Problem(message, remedy, path="policies")) from error
    kind = type(policy)
    try:
        source = Path(inspect.getfile(kind.allocate))
    except (AttributeError, OSError, TypeError):
        source = Path(kind.__name__)
    return Contestant(policy.name, policies.guard(policy, source))
