"""The SideCar paper's evaluation: its case study is met, and its workloads are what they claim."""

import dataclasses
import itertools
import json
import math
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from dlcore.model import Direction
from dlcore.profiles import JobType
from dlpapers.reproducing.sidecar import evaluation, fitting, pictures
from dlpapers.reproducing.sidecar.case import PAPER, compare, play_case
from dlpapers.reproducing.sidecar.constants import FROZEN
from dlpapers.reproducing.sidecar.job_types import (
    COUNTS,
    JOB_SET_ONE,
    JOB_SET_TWO,
    Kind,
    Rule,
    make_profile,
)
from dlpapers.reproducing.sidecar.runs import (
    APPROACHES,
    Outcomes,
    play,
    play_seeds,
    sum_up,
)
from dlpapers.reproducing.sidecar.workloads import (
    PLANS,
    WINDOW_S,
    make_learning,
    make_workload,
)
from dlsim.inputs.shipped import load_shipped
from dlsim.results import plots
from dlwire.messages import Shape

# --- the case study -----------------------------------------------------------------------

CASE = {event: (paper, ours) for event, paper, ours in compare(play_case(FROZEN))}


@pytest.mark.parametrize("event", CASE)
def test_every_time_of_the_case_study_is_met_within_five_percent(event):
    paper, ours = CASE[event]
    assert ours == pytest.approx(paper, rel=0.05)


def test_the_case_study_has_the_papers_eleven_times_and_four_reshape_times():
    reshapes = [event for event in CASE if "reshape" in event]
    assert len(CASE) - len(reshapes) == 11
    assert len(reshapes) == 4
    assert CASE["default/job-2-done"][0] == 1249
    assert CASE["termination/reshape-up"][0] == 242
    assert CASE["sidecar/reshape-down"][0] == 27


def test_no_more_than_ten_constants_were_needed():
    costs = dataclasses.fields(FROZEN.costs)
    others = [field for field in dataclasses.fields(FROZEN) if field.name != "costs"]
    assert len(costs) + len(others) == 10


def test_the_frozen_constants_are_those_that_the_fit_finds():
    values = fitting.fit()
    assert np.abs(fitting.measure_errors(values)).max() < 0.04
    assert fitting.make_constants(np.round(values)) == FROZEN


# --- the types of job ---------------------------------------------------------------------


def speed(kind: Kind, gpus: int, gpu_type: str, rule: Rule = Rule.COMPUTED_PART) -> float:
    return make_profile(kind, (gpu_type,), rule).speeds[Shape(gpus, 1, gpu_type)].iterations_per_s


def find(model: str, batch: int) -> Kind:
    return next(kind for kind in (*JOB_SET_ONE, *JOB_SET_TWO) if kind.type[0::2] == (model, batch))


@pytest.mark.parametrize("gpu_type", ["V100", "P100", "K80"])
def test_a_measured_model_is_as_fast_on_one_gpu_as_it_was_measured(gpu_type):
    measured = load_shipped()[JobType("ResNet-50", "", 64)].speeds[Shape(1, 1, gpu_type)]
    assert speed(find("ResNet-50", 64), 1, gpu_type) == pytest.approx(
        measured.iterations_per_s, rel=0.01
    )


def test_a_resnet_scales_as_the_paper_says_of_its_own():
    kind = find("ResNet-18", 64)
    one = speed(kind, 1, "V100")
    assert speed(kind, 2, "V100") / one == pytest.approx(1.7, rel=0.05)
    assert speed(kind, 4, "V100") / one == pytest.approx(2.4, rel=0.05)


@pytest.mark.parametrize("rule", Rule)
@pytest.mark.parametrize("kinds", [JOB_SET_ONE, JOB_SET_TWO])
def test_every_type_has_a_speed_at_every_count_by_every_rule(rule, kinds):
    for kind in kinds:
        profile = make_profile(kind, ("V100", "K80"), rule)
        assert len(profile.speeds) == 2 * len(COUNTS)
        assert all(0 < each.iterations_per_s < math.inf for each in profile.speeds.values())


def test_jobs_train_the_papers_epochs():
    assert find("ResNet-50", 64).iterations == math.ceil(1_281_167 / 64)
    assert find("ResNet-8", 1024).iterations == 10 * math.ceil(50_000 / 1024)
    assert find("LeNet", 1024).iterations == 10 * math.ceil(60_000 / 1024)


# --- the workloads ------------------------------------------------------------------------


@pytest.mark.parametrize("plan", PLANS, ids=lambda plan: plan.name)
def test_a_workload_is_what_section_v_says(plan):
    jobs = make_workload(plan, seed=3).jobs
    arrivals = [traced.job.submitted_at for traced in jobs]
    assert len(jobs) == plan.jobs
    assert arrivals == sorted(arrivals)
    assert arrivals[0] > 0
    assert 0.5 * WINDOW_S < arrivals[-1] < WINDOW_S
    assert {traced.job.type for traced in jobs} <= {kind.type for kind in plan.kinds}
    assert all(traced.job.gpus.max_nodes == 1 for traced in jobs)
    assert [len(node.gpus) for node in plan.nodes] == [8, 8]


def test_gaps_between_arrivals_are_exponential():
    gaps = [
        later.job.submitted_at - earlier.job.submitted_at
        for seed in range(50)
        for jobs in [make_workload(PLANS[0], seed).jobs]
        for earlier, later in itertools.pairwise(jobs)
    ]
    mean = WINDOW_S / (PLANS[0].jobs + 1)
    assert np.mean(gaps) == pytest.approx(mean, rel=0.05)
    # Of an exponential distribution the deviation is the mean, and 1/e of all are longer.
    assert np.std(gaps) == pytest.approx(mean, rel=0.1)
    assert np.mean(np.array(gaps) > mean) == pytest.approx(math.exp(-1), abs=0.03)


def test_seeds_draw_different_workloads_and_the_same_seed_the_same():
    one, again, other = (make_workload(PLANS[0], seed) for seed in (1, 1, 2))
    assert one.jobs == again.jobs
    assert one.jobs != other.jobs


def test_types_are_drawn_evenly():
    drawn = Counter(
        traced.job.type for seed in range(50) for traced in make_workload(PLANS[0], seed).jobs
    )
    assert len(drawn) == 7
    assert min(drawn.values()) > 0.8 * 50 * 40 / 7


def test_workload_four_holds_the_jobs_of_three_to_the_accuracy_they_reach_there():
    three, four = (make_workload(PLANS[number - 1], seed=5).jobs for number in (3, 4))
    for epochs, accuracy in zip(three, four, strict=True):
        assert epochs.job.type == accuracy.job.type
        assert epochs.job.submitted_at == accuracy.job.submitted_at
        assert epochs.iterations == accuracy.iterations
        target, learning = accuracy.job.training.target, accuracy.learning
        assert target is not None
        assert learning is not None
        assert target.direction is Direction.RISES
        assert learning.iterations_to(target.value) == pytest.approx(epochs.iterations)


def test_a_policy_is_told_of_accuracy_only_what_the_first_iterations_showed():
    workload = make_workload(PLANS[3], seed=0)
    for kind in PLANS[3].kinds:
        known = workload.known[kind.type].accuracy
        assert known
        assert max(point.iteration for point in known) <= 0.05 * kind.iterations
        assert not workload.truths[kind.type].accuracy


def test_an_accuracy_starts_at_chance():
    assert make_learning(find("VGG16", 64)).truth_at(0) == pytest.approx(5 / 1000)
    assert make_learning(find("LeNet", 1024)).truth_at(0) == pytest.approx(5 / 10)


# --- what comes out -----------------------------------------------------------------------


def test_every_job_completes_and_loses_time_only_where_it_is_reshaped():
    for approach in APPROACHES:
        record = play(PLANS[1], approach, seed=0)
        assert not record.unfinished
        assert not record.dropped
        outcome = sum_up(record)
        assert (outcome.reshape_share > 0) == (outcome.adding + outcome.removing > 0)
    assert sum_up(play(PLANS[1], "default", seed=0)).adding == 0
    assert sum_up(play(PLANS[1], "termination", seed=0)).removing == 0


@pytest.mark.slow
def test_a_run_is_the_same_under_another_hash_seed():
    code = (
        "import dataclasses, json\n"
        "from dlpapers.reproducing.sidecar.runs import play, sum_up\n"
        "from dlpapers.reproducing.sidecar.workloads import PLANS\n"
        "print(json.dumps(dataclasses.asdict(sum_up(play(PLANS[1], 'sidecar', 4)))))\n"
    )

    def run(hash_seed: str) -> str:
        environment = os.environ | {
            "PYTHONHASHSEED": hash_seed,
            "PYTHONPATH": os.pathsep.join(sys.path),
        }
        done = subprocess.run(
            [sys.executable, "-c", code], env=environment, capture_output=True, check=True
        )
        return done.stdout.decode()

    first = run("1")
    assert first == run("2")
    assert json.loads(first)["makespan_s"] > WINDOW_S / 2


@pytest.fixture(scope="module")
def runs() -> Mapping[str, Sequence[Outcomes]]:
    return play_seeds(PLANS, seeds=2)


@pytest.mark.slow
def test_sidecar_takes_less_than_termination_and_that_less_than_default(runs):
    for seeds in runs.values():
        for quantity in ("makespan_s", "avg_jct_s"):
            ours, termination, default = (
                sum(getattr(run[name], quantity) for run in seeds)
                for name in ("sidecar", "termination", "default")
            )
            assert ours < termination < default


@pytest.mark.slow
def test_sidecar_loses_less_than_a_tenth_to_reshaping_and_less_than_termination(runs):
    for seeds in runs.values():
        for run in seeds:
            assert run["sidecar"].reshape_share < 0.1
            assert run["sidecar"].reshape_share < run["termination"].reshape_share


@pytest.mark.slow
def test_the_rows_hold_every_figure_of_the_paper(runs, monkeypatch):
    monkeypatch.setattr(evaluation, "play_seeds", lambda plans, watch: runs)
    reproduction = evaluation.reproduce(None)
    found = {(row.item, row.quantity, row.unit): row for row in reproduction.rows}
    assert len(found) == len(reproduction.rows)
    for approach, times in PAPER.items():
        for event, paper in times.items():
            assert found[f"case/{approach}/{event}", "time", "s"].paper == paper
    for number in range(1, 5):
        for baseline in ("default", "termination"):
            item = f"workload-{number}/{baseline}"
            assert found[item, "makespan reduction", "%"].spread >= 0
            assert found[item, "jct reduction", "%"].ours > 0
            assert found[f"{item}, foresight", "jct reduction", "%"].ours > 0
        assert (f"workload-{number}/sidecar", "reshape share", "%") in found
    assert any("median error of the predicted iterations" in note for note in reproduction.notes)


@pytest.mark.slow
def test_every_picture_can_be_drawn_and_comes_out_the_same_again(runs):
    case = play_case(FROZEN)
    figures = pictures.draw_all(case, runs)
    assert len(figures) == 10
    drawn = {name: plots.render(figure, "svg") for name, figure in figures.items()}
    again = plots.render(pictures.draw_case(case), "svg")
    assert again == drawn["sidecar-fig03-case-study"]


@pytest.mark.slow
def test_seeds_come_in_their_order_however_many_processes_there_are(runs):
    alone = {name: sum_up(play(PLANS[1], name, seed=1)) for name in APPROACHES}
    assert runs["workload-2"][1] == alone
