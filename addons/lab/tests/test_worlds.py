"""The rules of published evaluations, alone and together in a replay."""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest

from dljob import installed
from dljob.core.checking import Law
from dljob.core.contract import Decision, Share, View
from dljob.core.model import GpuDemand, Job, JobId, Node, Training
from dljob.core.profiles import Costs, JobType
from dljob.installed import find_points
from dljob.sim.clusters import build_packed
from dljob.sim.engine.controlling.rounds import Growth, next_round
from dljob.sim.engine.settings import Setting
from dljob.sim.engine.world import World
from dljob.sim.inputs.traces import Kind, read_trace
from dljob.sim.jobs import workloads
from dljob.sim.scenarios import LAB_WORLDS, Scenario
from dljob_lab import worlds
from dljob_lab.comparing.tasks import Task
from dljob_lab.worlds import WORLDS
from tests.builders import FakePolicy
from tests.sim.worlds import make_traced, make_workload

TRACES = Path(__file__).parents[3] / "tests" / "data" / "traces"
HEADER = "job_id,submit_time_s,duration_s,num_gpus\n"


@dataclass(frozen=True)
class Greedy(FakePolicy):
    """Gives the only job its largest number, and records the time and number of each decision."""

    breaks: ClassVar[frozenset[Law]] = frozenset({Law.PURPOSE})

    def allocate(self, view: View) -> Decision:
        seen = view.state if isinstance(view.state, tuple) else ()
        shares = {
            state.id: Share(state.job.gpus.options[-1]) for state in (*view.running, *view.pending)
        }
        return Decision(shares, state=(*seen, (view.now, *(s.gpus for s in shares.values()))))


def ask_greedily(setting: Setting, *jobs: workloads.TracedJob) -> list[tuple[float, ...]]:
    world = World(make_workload(*jobs), setting, policy=Greedy())
    world.play()
    asked = world._policy_state
    assert isinstance(asked, tuple)
    return list(asked)


def make_job(model: str, options: tuple[int, ...], requested: int) -> Job:
    demand = GpuDemand(options=options, requested=requested)
    return Job(id=JobId("j"), gpus=demand, training=Training(iterations=9), type=JobType(model))


def write(folder: Path, *rows: str) -> Path:
    path = folder / "trace.csv"
    path.write_text(HEADER + "".join(f"{row}\n" for row in rows), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("now", "begins"), [(0.0, 0.0), (0.1, 60.0), (60.0, 60.0), (60.000001, 60.0), (60.1, 120.0)]
)
def test_round_begins_at_the_next_multiple(now, begins):
    assert next_round(now, 60.0) == begins


def test_decisions_are_made_at_rounds_only():
    setting = Setting(nodes=(Node.of("n1", 4),), round_s=60.0)
    jobs = make_traced("a", at=70.0, iterations=500.0), make_traced("b", at=200.0, iterations=10.0)
    moments = [moment for moment, *_ in ask_greedily(setting, *jobs)]
    # Submitted in the second round; the first is done 125 s after it started, in the fifth.
    assert [moment / 60.0 for moment in dict.fromkeys(moments)] == [2.0, 4.0, 5.0]


def test_job_at_most_doubles_at_once():
    growth = Growth(factor=2, at_first=1, most=8)
    setting = Setting(
        nodes=(Node.of("n1", 16),), growth=growth, costs=Costs(process_initialization=1.0)
    )
    job = make_traced("a", options=(1, 2, 4, 8, 16), requested=1, iterations=10_000.0)
    given = [gpus for _, *all_gpus in ask_greedily(setting, job) for gpus in all_gpus]
    assert list(dict.fromkeys(given)) == [1, 2, 4, 8]


def test_growth_keeps_smallest_and_requested_size():
    growth = Growth()
    job = make_job("m", (2, 4, 8, 16), 8)
    assert growth.limit(job, 0).gpus.options == (2, 8)
    assert growth.limit(job, 2).gpus.options == (2, 4, 8)
    assert growth.limit(job, 8) is job


def test_network_packing_allows_multiples_of_a_node():
    allowed = [n for n in range(1, 17) if worlds.is_packed(n, 4, only_powers=True)]
    assert allowed == [1, 2, 4, 8, 12, 16]
    allowed = [n for n in range(1, 17) if worlds.is_packed(n, 4, only_powers=False)]
    assert allowed == [1, 2, 3, 4, 8, 12, 16]


@pytest.mark.parametrize("name", ["afs", "pollux"])
def test_spread_job_shares_no_node(name):
    demand = worlds.demand_of(WORLDS[name], make_job("m", (1, 2, 4, 6, 8), 6), node_gpus=4)
    assert (demand.options, demand.requested, demand.whole_nodes) == ((1, 2, 4, 8), 4, True)


def test_world_sets_rounds_and_growth():
    nodes = build_packed(WORLDS["pollux"].machines)
    settled = WORLDS["pollux"].settle(Setting(nodes=nodes))
    assert (settled.round_s, settled.period_s) == (60.0, 60.0)
    assert settled.growth == Growth(factor=2, at_first=1, most=64)
    afs = WORLDS["afs"].settle(Setting(nodes=nodes))
    assert afs == Setting(nodes=nodes), "AFS decides at events, and its curves say how far to grow"


def test_gpu_time_selects_applications():
    hours = {0.9: ("cifar10", "ncf"), 1.0: ("deepspeech2", "bert"), 99.0: ("yolov3",)}
    for each, models in hours.items():
        assert worlds.choose_models(each * 3600.0) == models
    assert worlds.choose_models(1e12) == ("imagenet",)


def test_trace_jobs_become_applications(tmp_path):
    path = write(tmp_path, *(f"{n},{n},1800,1" for n in range(200)), "x,500,36000,4")
    trace = read_trace(path)
    assigned = WORLDS["pollux"].assign(trace, seed=0)
    assert assigned.kind is Kind.POLLUX
    assert assigned.requests[-1].model == "yolov3"
    counts = Counter(request.model for request in assigned.requests[:-1])
    assert counts.keys() == {"cifar10", "ncf"}
    assert 70 < counts["ncf"] < 130
    again = WORLDS["pollux"].assign(trace, seed=0)
    assert again == assigned
    other = WORLDS["pollux"].assign(trace, seed=1)
    assert [r.model for r in other.requests] != [r.model for r in assigned.requests]


def test_configuration_is_kept_for_use_and_length():
    def find(gpus: int) -> worlds.Configuration | None:
        seconds = {1: 1000.0, 2: 600.0, 4: 600.0, 8: 160.0}.get(gpus)
        return None if seconds is None else worlds.Configuration(gpus, 64, seconds)

    # Speed-ups of 0.83, 0.42 and 0.78 of linear.
    assert [each.gpus for each in worlds.find_well_used(find)] == [8]
    alone = worlds.find_well_used(lambda gpus: find(gpus) if gpus <= 4 else None)
    assert [each.gpus for each in alone] == [1]


def test_product_knows_the_worlds_of_the_lab():
    assert tuple(WORLDS) == LAB_WORLDS
    assert set(find_points(installed.SCENARIOS)) >= set(LAB_WORLDS)


def test_results_of_different_worlds_differ():
    path, machines = TRACES / "pollux_0.5_workload-1.csv.gz", WORLDS["pollux"].machines
    tasks = [
        Task(scenario=Scenario(trace=path, machines=machines, world=world), policy="srsf")
        for world in (None, *WORLDS)
    ]
    assert len({task.key() for task in tasks}) == len(tasks)
