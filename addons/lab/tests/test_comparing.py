"""Comparisons: the keys of tasks, the journal of results, and fair ratios."""

import json
import math
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dljob.core.model import Mechanism
from dljob.sim.clusters import Machines
from dljob.sim.errors import BadInput
from dljob.sim.jobs.workloads import Workload
from dljob.sim.scenarios import Scenario, read_workload
from dljob_lab.comparing import tasks as tasks_module
from dljob_lab.comparing.journal import Journal
from dljob_lab.comparing.planning import plan
from dljob_lab.comparing.running import Failure, perform, run_tasks
from dljob_lab.comparing.summing import KNOWING_ALL, Line, Spread, spread, sum_up
from dljob_lab.comparing.tasks import Task, Values, digest_program, without_measured

HEADER = "job_id,submit_time_s,duration_s,num_gpus\n"
JOBS = "0,0,3600,4\n1,60,1800,8\n2,120,600,2\n3,180,7200,4\n4,240,900,1\n"


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "five.csv"
    path.write_text(HEADER + JOBS, encoding="utf-8")
    return path


@pytest.fixture
def scenario(trace: Path) -> Scenario:
    return Scenario(trace=trace, machines=(Machines(1, 8),))


def row(policy: str, avg: float, **more: Any) -> dict[str, Any]:
    figures = {"avg_jct_s": avg, "p99_jct_s": 100.0, "makespan_s": 10.0}
    return {
        "policy": policy,
        "trace": "a",
        "unfinished": 0,
        "unfair_local_share": 0.5,
        **figures,
        **more,
    }


def test_key_depends_on_every_input(scenario):
    changes = {
        "machines": (Machines(2, 4),),
        "counted": True,
        "mechanism": Mechanism.RECREATE,
        "restart_cost_s": 30.0,
        "period_s": 15.0,
        "rigid": True,
        "seed": 1,
        "window": 3,
        "load": 0.9,
        "speed_error": 0.2,
        "size_error": 0.2,
        "sizes_known": False,
    }
    others = [replace(scenario, **{name: value}) for name, value in changes.items()]
    every = [Task(scenario=each, policy="fifo") for each in (scenario, *others)]
    every += [Task(scenario=scenario, policy="srtf"), Task(scenario=scenario)]
    every += [Task(scenario=scenario, policy="tiresias:thresholds=10,20")]
    assert len({task.key() for task in every}) == len(every)


def test_key_ignores_the_path_of_the_trace(scenario, tmp_path):
    copy = tmp_path / "elsewhere" / "five.csv"
    copy.parent.mkdir()
    copy.write_bytes(scenario.trace.read_bytes())
    one = Task(scenario=scenario, policy="fifo", part="judging")
    other = Task(scenario=replace(scenario, trace=copy), policy="fifo")
    assert one.key() == other.key()


def test_program_change_makes_results_stale(monkeypatch):
    read = Path.read_bytes
    before = digest_program()
    for edited in ("dljob/core/policies/baselines/srtf.py", "dljob_wire/messages.py"):
        with monkeypatch.context() as patch:
            patch.setattr(
                Path,
                "read_bytes",
                lambda path, name=edited: read(path) + b"#" * path.as_posix().endswith(name),
            )
            digest_program.cache_clear()
            assert digest_program() != before
    digest_program.cache_clear()
    assert digest_program() == before


def test_every_combination_is_one_task(scenario):
    axes = {
        "load": (0.5, 0.9),
        "restart_cost_s": (0.0, 30.0),
        "size_error": (0.0, 0.2),
        "seed": (0, 1),
    }
    every = plan(scenario, [scenario.trace], axes=axes, policies=["fifo", "srtf"], bound=True)
    played = [task for task in every if task.policy is not None]
    assert len(played) == len(set(played)) == 2 * 2 * 2 * 2 * 2
    # The same bound serves both size errors.
    assert len(every) - len(played) == 2 * 2 * 2


def test_task_plays_its_policy(scenario):
    values = Task(scenario=scenario, policy="srtf").perform()
    assert values["policy"] == "srtf"
    assert values["jobs"] == 5
    bound = Task(scenario=scenario).perform()["bound_avg_jct_s"]
    assert 0.0 < bound <= values["avg_jct_s"]


def test_failed_task_says_why_and_fails_alone(scenario, tmp_path):
    missing = replace(scenario, trace=tmp_path / "none.csv")
    every = [
        (0, Task(scenario=missing, policy="fifo")),
        (1, Task(scenario=scenario, policy="fifo")),
    ]
    failed, done = run_tasks(every, processes=1)
    assert isinstance(failed.result, Failure)
    assert "none.csv" in failed.result.message
    assert isinstance(done.result, dict)


@pytest.mark.slow
def test_several_processes_match_one(scenario):
    every = [
        (number, Task(scenario=replace(scenario, seed=number), policy="srtf"))
        for number in range(5)
    ]

    def results(processes: int) -> dict[int, Values]:
        finished = dict(run_tasks(every, processes=processes))
        return {n: without_measured(each) for n, each in finished.items() if isinstance(each, dict)}

    assert len(results(1)) == 5
    assert results(2) == results(1)


class Dying(Task):
    """A task that ends its process."""

    def perform(self):
        os._exit(1)


@pytest.mark.slow
def test_dead_process_fails_few_tasks(scenario):
    tasks: list[Task] = [Dying(scenario=scenario, policy="fifo")]
    tasks += [Task(scenario=replace(scenario, seed=n), policy="fifo") for n in range(7)]
    finished = dict(run_tasks(list(enumerate(tasks)), processes=2))
    assert len(finished) == 8
    failed = {number for number, result in finished.items() if isinstance(result, Failure)}
    assert 0 in failed
    # At most as many as are handed to two processes at once.
    assert len(failed) <= 4


def test_workload_is_read_once_for_all_policies(scenario, monkeypatch):
    count = []

    def read(*given: Any, **named: Any) -> Workload:
        count.append(given)
        return read_workload(*given, **named)

    monkeypatch.setattr(tasks_module, "read_workload", read)
    for policy in ("fifo", "srtf", "max-min"):
        assert isinstance(perform(Task(scenario=scenario, policy=policy)), dict)
    assert len(count) == 1


def test_journal_finds_results_again(tmp_path):
    path = tmp_path / "new" / "journal"
    first = Journal.open(path)
    first.add("a", {"avg_jct_s": math.nan, "jobs": 3})
    first.close()
    again = Journal.open(path)
    found = again.find("a")
    again.close()
    assert found is not None
    assert found["jobs"] == 3
    assert math.isnan(found["avg_jct_s"])
    assert again.find("b") is None


def test_half_written_line_is_ignored(tmp_path):
    path = tmp_path / "journal"
    whole = json.dumps({"key": "a", "values": {"jobs": 1}})
    path.write_text(f"{whole}\n{whole[:20]}", encoding="utf-8")
    journal = Journal.open(path)
    journal.add("b", {"jobs": 2})
    journal.close()
    again = Journal.open(path)
    again.close()
    assert (again.find("a"), again.find("b")) == ({"jobs": 1}, {"jobs": 2})


def test_foreign_file_is_left_alone(trace):
    before = trace.read_bytes()
    with pytest.raises(BadInput, match="holds no results"):
        Journal.open(trace)
    assert trace.read_bytes() == before


def ratio_of(line: Line) -> Spread:
    found = line.ratios["avg_jct_s"]
    assert found is not None
    return found


def test_ratios_are_averaged_geometrically():
    rows = [row("x", 1.0), row("y", 2.0), row("x", 8.0, trace="b"), row("y", 4.0, trace="b")]
    x, y = sum_up(rows, references=["x"])
    assert ratio_of(y).mean == pytest.approx(1.0)
    assert (ratio_of(y).low, ratio_of(y).high) == pytest.approx((0.5, 2.0))
    assert ratio_of(y).deviation == pytest.approx(math.log(2.0))
    assert x.ratios["avg_jct_s"] == spread([1.0, 1.0])


def test_exact_reference_is_the_policy_that_knows_all():
    wrong = {"speed_error": 0.2, "size_error": 0.0, "sizes": "known"}
    rows = [
        *(row("x", 2.0, **KNOWING_ALL), row("y", 4.0, **KNOWING_ALL)),
        *(row("x", 3.0, **wrong), row("y", 5.0, **wrong)),
    ]
    lines = sum_up(rows, by=["speed_error"], references=["exact"])
    means = {(line.group, line.policy): ratio_of(line).mean for line in lines}
    assert means == {
        (("0",), "x"): 1.0,
        (("0",), "y"): 1.0,
        (("0.2",), "x"): pytest.approx(1.5),
        (("0.2",), "y"): pytest.approx(1.25),
    }


def test_incomplete_average_has_no_bound():
    bound = {"bound_avg_jct_s": 2.0, "bound_jobs": 5, "jobs": 5, "unfinished": 1}
    (line,) = sum_up([row("x", 3.0, **bound)])
    assert line.bound is None
    assert line.unfinished == 1
