"""
Rigid jobs on counted GPUs reproduce published figures and an independent program to the digit.

Each event of a replay runs the production cycle, so the cycle, policies and world are all compared.
"""

import csv
import random
from functools import cache
from pathlib import Path

import pytest

from dljob.core.contract import Policy
from dljob.core.policies.baselines.fifo import Fifo
from dljob.core.policies.baselines.srtf import Srsf, Srtf
from dljob.core.policies.papers.tiresias import Tiresias
from dljob.core.profiles import Costs
from dljob.sim.clusters import build_counted, fill_nodes
from dljob.sim.engine.settings import Setting
from dljob.sim.results.scoring import Score
from dljob.sim.simulating import Contestant, simulate
from dljob_lab.policies.rigid.fjf import Fjf
from tests.reference import reference
from tests.sim.worlds import read_workload

TRACES = Path(__file__).parents[1] / "data" / "traces"
POLICIES: dict[str, Policy] = {
    policy.name: policy for policy in (Fifo(), Fjf(), Srtf(), Srsf(), Tiresias())
}

with (TRACES / "peer_figures.csv").open(encoding="utf-8") as file:
    PUBLISHED = list(csv.DictReader(file))

QUICK = "philly_e13805"
"""The trace of the gate; the others are ``slow``."""
NAMES = [
    path.name.removesuffix(".csv.gz")
    for pattern in ("philly_*", "itp_cluster??.*", "tiresias_*")
    for path in sorted(TRACES.glob(f"{pattern}.gz"))
]
MOST_JOBS = 200
"""A longer trace is cut to this number of jobs."""


@cache
def play(trace: Path, policy: str) -> Score:
    nodes = build_counted(fill_nodes(64))
    workload = read_workload(trace, rigid=True, node_gpus=64)
    setting = Setting(nodes=nodes, costs=Costs())
    (outcome,) = simulate(workload, setting, contestants=[Contestant(policy, POLICIES[policy])])
    return outcome.score


def figures_of(score: Score) -> str:
    figures = reference.Figures(
        score.avg_jct_s, score.p50_jct_s, score.p95_jct_s, score.p99_jct_s, score.makespan_s
    )
    return str(figures)


def path_of(trace: str) -> Path:
    return TRACES / f"{trace}.csv.gz"


def marks_of(trace: str) -> list[pytest.MarkDecorator]:
    return [] if trace == QUICK else [pytest.mark.slow]


@pytest.mark.parametrize(
    "row",
    [
        pytest.param(row, marks=marks_of(row["trace"]), id=f"{row['trace']}-{row['policy']}")
        for row in PUBLISHED
    ],
)
def test_published_figures_are_met_exactly(row):
    average, *others = figures_of(play(path_of(row["trace"]), row["policy"])).split()
    low, _, high = row["avg"].partition("..")
    assert float(low) <= float(average) <= float(high or low)
    assert others == [row["p50"], row["p95"], row["p99"], row["makespan"]]


def shorten(path: Path, folder: Path) -> Path:
    """Write the first jobs of a long trace to a new file."""
    with reference.open_text(path) as whole:
        lines = whole.readlines()
    short = folder / path.with_suffix("").name
    short.write_text("".join(lines[: MOST_JOBS + 1]), encoding="utf-8")
    return short


@pytest.mark.parametrize("trace", [pytest.param(trace, marks=marks_of(trace)) for trace in NAMES])
def test_beginning_of_a_trace_matches_the_reference(trace, tmp_path):
    check_against_reference(shorten(path_of(trace), tmp_path))


@pytest.mark.long
@pytest.mark.parametrize("trace", NAMES)
def test_whole_trace_matches_the_reference(trace):
    check_against_reference(path_of(trace))


def check_against_reference(path: Path) -> None:
    for policy in POLICIES:
        expected = reference.replay(reference.read_trace(path), 64, policy)
        assert figures_of(play(path, policy)) == str(expected), policy


@pytest.mark.parametrize("seed", range(4))
def test_random_trace_matches_the_reference(seed, tmp_path):
    # Few instants and few counts, so that much happens at once and ties are many.
    lots = random.Random(seed)
    counts = lots.choice([(1, 2, 4, 8, 16, 32, 64), (5, 17, 33), (1, 64, 65), (1,)])
    rows = [
        f"{job},{lots.randrange(40) * 100},{lots.randrange(30) * 100},{lots.choice(counts)}\n"
        for job in range(60)
    ]
    path = tmp_path / "trace.csv"
    path.write_text("job_id,submit_time_s,duration_s,num_gpus\n" + "".join(rows), encoding="utf-8")
    check_against_reference(path)


def test_oversized_jobs_are_dropped_and_counted(tmp_path):
    path = tmp_path / "trace.csv"
    path.write_text("job_id,submit_time_s,duration_s,num_gpus\na,0,9,65\nb,1,9,64\n", "utf-8")
    assert play(path, "fifo").dropped == 1
