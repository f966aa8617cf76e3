"""The speed of a training is that of its latest steps, without its warm-up."""

import random

import pytest

from dljob_wire.speed_window import SpeedWindow


def measure(*parts: tuple[float, float], jitter: float = 0.0) -> float | None:
    """Let a training do a step each 1 / speed seconds for these (seconds, speed)."""
    window, now, iteration, chance = SpeedWindow(), 0.0, 0, random.Random(1)
    for seconds, speed in parts:
        for _ in range(int(seconds * speed)):
            now += (1.0 + chance.uniform(-jitter, jitter)) / speed
            iteration += 1
            window.add(now, iteration)
            if iteration % 5 == 0:
                assert window.iterations_per_second is not None
    return window.iterations_per_second


@pytest.mark.parametrize("pace", [0.1, 0.3, 0.6])
@pytest.mark.parametrize("speed", [1.0, 40.0])
def test_warm_up_is_forgotten_soon(pace, speed):
    assert measure((30.0, pace * speed), (45.0, speed)) == pytest.approx(speed, rel=0.05)


@pytest.mark.parametrize("speed", [0.5, 20.0])
def test_noise_is_no_warm_up(speed):
    assert measure((200.0, speed), jitter=0.4) == pytest.approx(speed, rel=0.1)


def test_slower_training_is_followed():
    assert measure((60.0, 10.0), (120.0, 5.0)) == pytest.approx(5.0, rel=0.05)
