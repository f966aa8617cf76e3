"""The controllers' clock while the machine's clock is set."""

from dataclasses import fields, replace
from typing import Any

import pytest

from dljob.control.situation.clocks import Reading, Stamp, SteadyClock, find_step, latest_of, moved
from dljob.control.situation.status import Condition, ConditionType, Status


class Machine:
    """A machine whose clock can be set while its steady clock runs on."""

    def __init__(self) -> None:
        self.wall, self.steady = 1_000_000.0, 500.0

    def live(self, seconds: float) -> None:
        self.wall += seconds
        self.steady += seconds

    def clock(self) -> SteadyClock:
        return SteadyClock(wall=lambda: self.wall, steady=lambda: self.steady)

    def reading(self, boot: str = "first") -> Reading:
        return Reading(Stamp(boot, self.steady), self.wall)


@pytest.mark.parametrize("step", [-3600.0, 3600.0, -1e9, 1e9])
def test_steady_clock_finds_each_step_once(step):
    machine = Machine()
    clock = machine.clock()
    began = clock()
    assert began == machine.wall
    machine.live(10.0)
    assert clock.step() == 0.0
    machine.wall += step
    assert clock() - began == pytest.approx(10.0)
    assert clock.step() == pytest.approx(step)
    assert clock.step() == 0.0
    machine.live(5.0)
    assert clock() - began == pytest.approx(15.0)
    # A step back to the right time is found as well.
    machine.wall -= step
    assert clock.step() == pytest.approx(-step)


@pytest.mark.parametrize("step", [-3600.0, 3600.0])
def test_step_between_controllers_is_found_by_kernel_time(step):
    machine = Machine()
    before = machine.reading()
    machine.live(100.0)
    assert find_step(before, machine.reading(), latest=machine.wall) == 0.0
    machine.wall += step
    assert find_step(before, machine.reading(), latest=machine.wall) == pytest.approx(step)


def test_after_a_boot_only_future_times_show_a_step():
    machine = Machine()
    before = machine.reading()
    machine.wall += 7200.0
    machine.steady = 3.0
    assert find_step(before, machine.reading("second"), latest=machine.wall - 60.0) == 0.0
    # A kernel without boot ids has counted less by then, too.
    assert find_step(before, machine.reading("first"), latest=machine.wall - 60.0) == 0.0
    machine.wall -= 7200.0 + 600.0
    assert find_step(before, machine.reading("second"), latest=before.at + 60.0) == -660.0


def test_moved_shifts_all_times_of_a_status():
    times = {each.name for each in fields(Status) if each.name.endswith("_at")}
    never = moved(Status(), 100.0)
    assert never == Status()
    said = Condition(ConditionType.SAVED, status=True, reason="Fine", message="", since=7.0)
    all_of_them: Any = dict.fromkeys(times, 50.0)
    status = replace(Status(conditions=(said,)), **all_of_them)
    after = moved(status, 100.0)
    assert {getattr(after, name) for name in times} == {150.0}
    assert after.conditions[0].since == 107.0
    assert moved(after, -100.0) == status
    assert latest_of(after) == 150.0
