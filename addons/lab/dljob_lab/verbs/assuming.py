"""
The assumptions of a comparison, in lines below its table.

A comparison has many scenarios: what holds in all of them is said once, and what holds in some with the traces that
it is about. Costs, errors and seeds that differ by its own options are in its table already.
"""

from collections.abc import Iterable, Iterator, Sequence

from dljob.cli.output import printing
from dljob.sim.premises import list_premises
from dljob.sim.scenarios import build_setting, read_workload
from dljob_lab.comparing.tasks import Task


def show_premises(tasks: Sequence[Task]) -> str:
    """List what is assumed in the first scenario of each trace; it reads each trace once more."""
    firsts: dict[str, Task] = {}
    for task in tasks:
        firsts.setdefault(task.trace, task)
    seeds = len({task.scenario.seed for task in tasks})
    told = {trace: _premises_of(task, seeds) for trace, task in firsts.items()}
    text = printing.list_premises([*_iter_merged(told)])
    others = len({(task.scenario, task.part) for task in tasks}) > len(firsts) * seeds
    if not others:
        return text
    return (
        f"{text}- where scenarios differ by options of the comparison, this is said of the first\n"
    )


def _premises_of(task: Task, seeds: int) -> tuple[str, ...]:
    setting = build_setting(task.scenario)
    premises = list_premises(read_workload(task.scenario, setting), setting, seeds=seeds)
    # The option that shows the curve of each job is one of the other verb.
    return tuple(each.replace(" --jobs-out", " dljob simulate --jobs-out") for each in premises)


def _iter_merged(told: dict[str, tuple[str, ...]]) -> Iterator[str]:
    for premise in dict.fromkeys(_flat(told.values())):
        traces = [trace for trace, premises in told.items() if premise in premises]
        yield premise if len(traces) == len(told) else f"{', '.join(traces)}: {premise}"


def _flat(groups: Iterable[tuple[str, ...]]) -> Iterator[str]:
    for group in groups:
        yield from group
