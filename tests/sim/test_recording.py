"""The record of a simulation matches its figures, and changes nothing."""

import pytest

from dljob.core.model import Mechanism, NodeName
from dljob.core.recording.record import Decided, Ended, Given, Phase, Stage
from dljob.sim.engine.settings import Outage, Setting
from dljob.sim.simulating import Contestant, simulate
from tests.builders import sum_gpu_seconds
from tests.sim.worlds import COSTS, TWO_NODES, make_short, make_traced, make_workload

WORKLOAD = make_workload(
    make_traced("a", at=0.0, iterations=4000),
    make_traced("b", at=100.0, iterations=2000),
    make_traced("c", at=300.0, iterations=1000),
    make_traced("d", at=310.0, iterations=900, options=(1, 2)),
    make_traced("wide", at=320.0, iterations=100, options=(64,)),
)
OUTAGE = Outage(NodeName("n2"), lost_at=200.0, back_at=400.0)


def play(policy, *, records=True, **setting):
    contestant = Contestant(policy, make_short(policy))
    world = Setting(nodes=TWO_NODES, costs=COSTS, outages=(OUTAGE,), **setting)
    (outcome,) = simulate(WORKLOAD, world, contestants=[contestant], records=records)
    return outcome


@pytest.mark.parametrize("mechanism", Mechanism)
@pytest.mark.parametrize("policy", ["foresight", "adaptive", "kube-pods"])
def test_gpu_seconds_match_the_figures(policy, mechanism):
    outcome = play(policy, mechanism=mechanism)
    assert outcome.happenings is not None
    assert len(outcome.record.completed) == 4
    figures = {job.job: job.gpu_seconds for job in outcome.record.jobs}
    assert sum_gpu_seconds(outcome.happenings) == pytest.approx(figures, abs=1e-6)
    ends = {
        line.job: (line.at, line.gpu_seconds, line.reshapes)
        for line in outcome.happenings.lines
        if isinstance(line, Ended)
    }
    assert ends == {
        job.job: (job.completed_at, job.gpu_seconds, job.reshapes) for job in outcome.record.jobs
    }


def test_recording_changes_nothing():
    with_it, without = play("foresight"), play("foresight", records=False)
    assert without.happenings is None
    assert with_it.record.log == without.record.log
    assert with_it.record.jobs == without.record.jobs


def test_decision_has_cause_expectation_and_outcome():
    lines = play("foresight").happenings.lines
    start = next(line for line in lines if isinstance(line, Decided))
    assert (start.job, start.step, start.cause, start.cost_seconds) == ("a", "start", "ItsTurn", 60)
    assert start.sentence.startswith("starts on 4 GPUs on n1")
    assert start.expected is not None
    assert start.expected.iterations_per_second == 4.0
    assert start.expected.pause_seconds == COSTS.pod_initialization + COSTS.process_initialization
    # It has its six terms: pods, process, training, and the end.
    assert start.expected.remaining_seconds == 60.0 + 4000 / 4.0 + COSTS.end
    made_room = [line for line in lines if isinstance(line, Decided) and line.cause == "MakesRoom"]
    for line in made_room:
        gains = [each for each in lines if isinstance(each, Given) and each.job == line.for_job]
        assert any(each.at == line.at and each.placement for each in gains)
    assert made_room


def test_reshape_passes_all_phases_in_order():
    lines = play("adaptive").happenings.lines
    reshape = next(line for line in lines if isinstance(line, Decided) and line.step == "reshape")
    reached = {
        line.phase: line.at
        for line in lines
        if isinstance(line, Phase)
        and (line.job, line.generation) == (reshape.job, reshape.generation)
    }
    stages = [stage for stage in Stage if stage is not Stage.PAUSED]
    assert reached.keys() == set(stages)
    assert [reached[stage] for stage in stages] == sorted(reached.values())
    assert reshape.how == "restarted"
    assert reached[Stage.SAVED] - reached[Stage.SAVING] == COSTS.checkpoint
    assert reached[Stage.STOPPED] - reached[Stage.SAVED] == COSTS.process_termination
    assert reshape.cost_seconds == reached[Stage.FIRST_STEP] - reached[Stage.SAVING]
    assert reached[Stage.ASKED] == reshape.at
