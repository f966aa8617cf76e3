"""The true speed of a training and the costs of its starts are learnt, even if reports are late."""

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dljob.core.measuring import LiveChange, SpeedSamples
from dljob.core.model import Job, NodeName, Placement
from dljob.core.profiles import CostSeen, CostTerm, SpeedSeen
from dljob_wire.messages import Change, Phase, Progress, Saving, State, Trial
from tests.builders import make_job

NODE = NodeName("node")
HERE = Placement.of({NODE: (0, 1)})
ORDERED_AT = 1000.0
START_SECONDS = 0.25


@dataclass(frozen=True)
class Training:
    """One start of a training, with its true speed."""

    speed: float
    initialization_s: float
    found: int = 0
    """Iterations done before the start."""
    generation: int = 1
    is_new_pod: bool = False
    """A new pod's SideCar does not report earlier iterations."""

    @property
    def begins_at(self) -> float:
        return ORDERED_AT + self.initialization_s

    def state_at(self, now: float) -> State:
        done = max(0, math.floor((now - self.begins_at) * self.speed + 1e-6))
        latest = self.begins_at + done / self.speed if done else ORDERED_AT
        return State(
            "incarnation",
            1,
            Phase.RUNNING,
            released=False,
            held_generation=2 * self.generation + 1,
            progress=Progress(
                iteration=self.found + done if done or not self.is_new_pod else 0,
                iterations_per_second=self.speed if done > 1 else 0.0,
                idle_seconds=max(0.0, now - latest),
                begun=done > 0,
            ),
            change=Change(2 * self.generation + 1, start_seconds=START_SECONDS),
        )


class Record(NamedTuple):
    """The record of a job, as far as its reports are judged by it."""

    placement: Placement | None
    generation: int
    run_generation: int
    batch_size: int | None = None


class Entry(NamedTuple):
    job: Job
    status: Record


def entry(generation: int = 1) -> Entry:
    record = Record(HERE, generation, 2 * generation + 1)
    return Entry(make_job("job", options=(2,)), record)


def hear(lessons: SpeedSamples, training: Training, times: list[float]):
    """Report the training at these times after the start of its processes; return the lessons."""
    learnt = []
    for time in times:
        now = ORDERED_AT + START_SECONDS + time
        state = training.state_at(now)
        learnt.append(lessons.hear(entry(training.generation), NODE, state, now))
    return learnt


def costs(learnt) -> list[CostSeen]:
    """The costs of starts, without those that were replaced later."""
    return [
        seen
        for lesson in learnt
        for seen in lesson.observations
        if isinstance(seen, CostSeen) and seen.replaces
    ]


@given(
    st.floats(0.2, 50.0),
    st.floats(START_SECONDS, 30.0),
    st.lists(st.floats(0.01, 3.0), min_size=2, max_size=30),
)
def test_start_is_timed_despite_late_reports(speed, seconds, pauses):
    training = Training(speed, seconds)
    times, at = [0.0], seconds - START_SECONDS
    for pause in pauses:
        at += pause
        times.append(at)
    seen = costs(hear(SpeedSamples(), training, times))
    assert len(seen) <= 1
    if training.state_at(ORDERED_AT + START_SECONDS + at).progress.iteration > 1 + math.ceil(
        speed * max(pauses)
    ):
        assert len(seen) == 1
    for each in seen:
        assert each.seconds == pytest.approx(seconds, abs=1e-3)
        assert each.gpus == HERE.gpus


def test_live_change_is_a_cost_of_its_own_and_no_start():
    lessons = SpeedSamples()
    hear(lessons, Training(10.0, 1.0), [0.0, 1.0, 2.0, 40.0])
    grown = Training(20.0, 60.0, found=390, generation=2)
    live = LiveChange(5, 0.75, joins=True)
    learnt = []
    for time in (60.1, 60.3, 65.0, 71.0, 72.0):
        now = ORDERED_AT + time
        learnt.append(lessons.hear(entry(2), NODE, grown.state_at(now), now, live=live))
    seen = [each for lesson in learnt for each in lesson.observations]
    assert seen[0] == CostSeen(CostTerm.LIVE_GROW, 0.75, HERE.gpus)
    # The speed is known without the time that starts warm up, and nothing is learnt of starts.
    assert [type(each) for each in seen[1:]] == [SpeedSeen]
    assert [each.resumed.lost_seconds for each in learnt if each.resumed] == [0.75]


def test_live_change_before_a_restart_of_the_controller_is_not_learnt_again():
    later = Training(10.0, 1.0, generation=2)
    now = ORDERED_AT + 30.0
    live = LiveChange(5, 0.75, joins=False)
    lesson = SpeedSamples().hear(entry(2), NODE, later.state_at(now), now, live=live)
    assert not any(
        isinstance(each, CostSeen) and each.term is CostTerm.LIVE_SHRINK
        for each in lesson.observations
    )


@pytest.mark.parametrize("is_new_pod", [False, True])
def test_start_continues_from_the_previous_progress(is_new_pod):
    lessons = SpeedSamples()
    hear(lessons, Training(10.0, 1.0), [0.0, 1.0, 2.0, 3.75])
    again = Training(5.0, 2.0, found=30, generation=2, is_new_pod=is_new_pod)
    (seen,) = costs(hear(lessons, again, [0.0, 2.3, 4.0]))
    assert seen.seconds == pytest.approx(2.0, abs=1e-3)


@pytest.mark.parametrize("is_new_pod", [False, True])
def test_start_after_a_fallback_is_timed_by_its_first_report(is_new_pod):
    lessons = SpeedSamples()
    hear(lessons, Training(10.0, 1.0), [0.0, 1.0, 9.0])
    again = Training(5.0, 2.0, found=10, generation=2, is_new_pod=is_new_pod)
    (seen,) = costs(hear(lessons, again, [0.0, 2.0, 4.0]))
    assert seen.seconds == pytest.approx(2.0, abs=1.0 / 5.0 + 1e-3)


def test_no_start_is_learnt_of_an_older_training():
    lessons = hear(SpeedSamples(), Training(10.0, 1.0), [50.0, 51.0, 52.0])
    assert costs(lessons) == []
    assert [lesson.resumed for lesson in lessons] == [None] * 3


def test_start_is_learnt_if_its_first_report_has_a_speed():
    lessons = SpeedSamples()
    hear(lessons, Training(10.0, 1.0), [0.0, 2.0])
    (late,) = hear(lessons, Training(10.0, 1.0, generation=2, found=20), [6.0])
    assert late.resumed is not None
    assert late.resumed.generation == 2


def test_late_first_report_has_no_negative_cost():
    (late,) = hear(SpeedSamples(), Training(0.1, 0.3), [12.0])
    assert late.resumed is not None
    assert late.resumed.lost_seconds == 0.0


def test_speeds_are_exact_despite_late_reports():
    training = Training(0.7, 1.0)
    learnt = hear(SpeedSamples(sample_seconds=10.0), training, [0.0, *range(2, 100, 3)])
    speeds = speeds_in(learnt)
    assert len(speeds) > 3
    assert [each.iterations_per_s for each in speeds] == pytest.approx([0.7] * len(speeds))


def speeds_in(learnt) -> list[SpeedSeen]:
    return [s for lesson in learnt for s in lesson.observations if isinstance(s, SpeedSeen)]


def warm_up(lessons: SpeedSamples, *, until: float, generation: int = 1):
    """Hear a training whose speed rises from 1 to 5 at that time after its first step."""
    learnt = []
    for after in range(0, 200, 2):
        speed = 1.0 if after < until else 5.0
        done = after if after < until else until + 5.0 * (after - until)
        now = ORDERED_AT + 1000.0 * generation + 20.0 + after
        state = replace(
            Training(speed, 20.0, generation=generation).state_at(now),
            progress=Progress(
                iteration=1 + int(done), iterations_per_second=speed if after else 0.0, begun=True
            ),
            change=Change(2 * generation + 1, start_seconds=20.0),
        )
        learnt.append(lessons.hear(entry(generation), NODE, state, now))
    return learnt


def test_no_speed_is_learnt_during_warm_up():
    speeds = speeds_in(warm_up(SpeedSamples(), until=25.0))
    assert {each.iterations_per_s for each in speeds} == {5.0}
    assert {each.replaces for each in speeds} == {0}


def test_long_warm_up_is_forgotten_and_then_expected():
    lessons = SpeedSamples()
    first = speeds_in(warm_up(lessons, until=55.0))
    slow = [each for each in first if each.iterations_per_s == 1.0]
    quick = [each for each in first if each.iterations_per_s == 5.0]
    assert len(slow) > 1
    assert [each.replaces for each in quick] == [len(slow)] + [0] * (len(quick) - 1)
    again = speeds_in(warm_up(lessons, until=55.0, generation=2))
    assert {each.iterations_per_s for each in again} == {5.0}


def test_warm_up_counts_as_part_of_the_start():
    plain, whole = costs(warm_up(SpeedSamples(), until=25.0))
    # The window of this training is exact, so the first 25 s are worth 5.
    assert whole.seconds - plain.seconds == pytest.approx(20.0, abs=1.0)
    assert whole.replaces == 1


def test_checkpoint_trial_measures_saving():
    lessons = SpeedSamples()
    state = Training(1.0, 0.5).state_at(ORDERED_AT + 5.0)
    tried = replace(state, trial=Trial(1, Saving.CONFIRMED, iteration=4, seconds=30.0))
    for _ in range(2):
        seen = lessons.hear(entry(), NODE, tried, ORDERED_AT + 5.0).observations
        timed = [each for each in seen if isinstance(each, CostSeen)]
        assert [(each.term, each.seconds) for each in timed] == [(CostTerm.CHECKPOINT, 30.0)]
        tried = replace(tried, trial=Trial(2, Saving.CONFIRMED, iteration=9, seconds=30.0))
    failed = replace(state, trial=Trial(3, Saving.TIMED_OUT, seconds=60.0))
    assert lessons.hear(entry(), NODE, failed, ORDERED_AT + 5.0).observations == ()


def test_warm_up_within_the_first_sample_counts_as_start():
    lessons = SpeedSamples(sample_seconds=10.0)
    learnt = hear(lessons, Training(1.0, 2.0), [0.0, 3.0, 4.0])
    # From second 10 on it is four times as fast.
    learnt += hear(lessons, Training(4.0, 8.0), [13.5, 24.0])
    seen = costs(learnt)
    assert [each.seconds for each in seen] == pytest.approx([2.0, 2.0 + 5.25])
    assert {each.replaces for each in seen} == {1}
    speeds = [s for lesson in learnt for s in lesson.observations if isinstance(s, SpeedSeen)]
    assert [each.iterations_per_s for each in speeds] == [4.0]


def test_job_resumes_once_with_its_lost_time():
    learnt = hear(SpeedSamples(), Training(2.0, 3.0), [0.0, 1.0, 3.5, 4.0, 9.0])
    resumed = [lesson.resumed for lesson in learnt if lesson.resumed is not None]
    (only,) = resumed
    assert only.generation == 1
    # Until its first iteration is over.
    assert only.lost_seconds == pytest.approx(3.0 + 1 / 2.0, abs=1e-3)
