"""No figure of one job's SideCar spoils the knowledge about others."""

import math

from hypothesis import given
from hypothesis import strategies as st

from dljob.control.sidecars.contacts import FASTEST, LONGEST_S, SLOWEST, plausible
from dljob_wire.messages import Change, Phase, Progress, State

NUMBERS = st.floats(0.0, 1e300)


def state_of(progress: Progress, change: Change | None = None) -> State:
    return State("x", 1, Phase.RUNNING, released=False, progress=progress, change=change)


@given(NUMBERS, NUMBERS, NUMBERS)
def test_speeds_are_plausible_and_times_bounded(speed, idle, seconds):
    change = Change(1, checkpoint_seconds=seconds, stop_seconds=seconds, start_seconds=seconds)
    told = plausible(state_of(Progress(iterations_per_second=speed, idle_seconds=idle), change))
    heard = told.progress.iterations_per_second
    assert heard == 0.0 or SLOWEST <= heard <= FASTEST
    assert heard in (0.0, speed)
    assert told.progress.idle_seconds == min(idle, LONGEST_S)
    assert told.change is not None
    assert told.change.start_seconds == min(seconds, LONGEST_S)
    assert math.isfinite(1e16 / heard if heard else 0.0)


def test_plausible_state_is_unchanged():
    state = state_of(Progress(iteration=7, iterations_per_second=2.0), Change(1))
    assert plausible(state) is state
