"""The reports of a training become progress and a reliable speed."""

from __future__ import annotations

import re
from itertools import product

import pytest

from dljob_sidecar.observing.matching import match_lines
from dljob_sidecar.observing.progress import (
    Epochs,
    Meter,
    NotProgress,
    in_iterations,
    parse_groups,
    parse_line,
)
from dljob_wire import codec
from dljob_wire.kinds import LARGEST_WHOLE
from dljob_wire.messages import Post, Progress


def run_steadily(meter, *, begin, count, speed, first=0):
    for step in range(count):
        meter.observe(begin + step / speed, Post(iteration=first + step))


def test_speed_follows_a_change_of_pace():
    meter = Meter()
    meter.begin(0.0)
    run_steadily(meter, begin=0.0, count=100, speed=10.0)
    assert meter.iterations_per_second == pytest.approx(10.0)
    run_steadily(meter, begin=10.0, count=600, speed=2.0, first=100)
    assert meter.iterations_per_second == pytest.approx(2.0)


def test_speed_forgets_the_restart():
    meter = Meter()
    meter.begin(0.0)
    run_steadily(meter, begin=10.0, count=50, speed=4.0)
    meter.begin(100.0)
    assert meter.iterations_per_second is None
    # The first iteration after a restart took 20 seconds, because it had to compile.
    meter.observe(101.0, Post(iteration=40))
    run_steadily(meter, begin=121.0, count=20, speed=8.0, first=41)
    assert meter.iterations_per_second == pytest.approx(8.0)


def test_epochs_count_if_no_iterations_are_reported():
    epochs = Epochs(100)
    reported = [epochs.in_iterations(Post(epoch=each)).iteration for each in (1.0, 1.0, 2.0, 2.5)]
    assert reported == [None, None, 200, 250]
    assert Epochs(0).in_iterations(Post(epoch=2.0)) == Post(epoch=2.0)
    # The epoch before its steps is no number of them.
    both = Epochs(100)
    posts = [Post(epoch=1.0), Post(iteration=12), Post(epoch=2.0), Post(epoch=3.0)]
    assert [both.in_iterations(each) for each in posts] == posts


def test_checkpoint_pause_barely_matters():
    meter = Meter()
    meter.begin(0.0)
    run_steadily(meter, begin=0.0, count=30, speed=10.0)
    run_steadily(meter, begin=8.0, count=10, speed=10.0, first=30)
    assert meter.iterations_per_second == pytest.approx(10.0, rel=0.1)


def test_equal_reports_of_ranks_count_once():
    meter = Meter()
    meter.begin(0.0)
    for step in range(20):
        for rank in range(4):
            meter.observe(step / 2 + rank / 1000, Post(iteration=step))
    assert meter.iterations_per_second == pytest.approx(2.0, rel=0.01)


def test_stall_ends_with_the_next_step():
    meter = Meter(stall_seconds=60.0)
    meter.begin(0.0)
    assert meter.progress(61.0).stalled
    meter.observe(1.0, Post(iteration=5))
    assert not meter.progress(60.0).stalled
    # A repeated report is no progress.
    meter.observe(61.0, Post(iteration=5))
    assert meter.progress(62.0).stalled
    assert meter.progress(62.0).idle_seconds == 61.0
    meter.observe(63.0, Post(iteration=6))
    assert not meter.progress(64.0).stalled
    meter.end()
    assert not meter.progress(1000.0).stalled


def test_named_groups_become_numbers_or_are_dropped():
    post = parse_groups({"step": "1,200", "epoch": "2.5", "top5": "87.5%", "batch": "256"})
    assert post == Post(iteration=1200, epoch=2.5, batch_size=256, metrics={"top5": 87.5})
    assert parse_groups({"iteration": "five", "loss": "nan", "lr": "inf", "x": "1e999"}) == Post()
    odd = parse_groups({"iteration": "-1", "flag": True, "none": None, "odd name": "1"})
    assert odd.iteration is None


def test_any_number_keeps_the_state_readable():
    numbers = ("9007199254740992", "1e30", "-1e30", "1.5e308", "-1.5e308")
    for name, number in product(("iteration", "batch", "epoch", "loss"), numbers):
        meter = Meter()
        meter.begin(0.0)
        meter.observe(1.0, parse_groups({name: number}))
        progress = meter.progress(2.0)
        assert codec.decode(Progress, codec.encode(progress)) == progress, (name, number)
    assert counted(LARGEST_WHOLE, 1, 2)[-1] == LARGEST_WHOLE


def test_json_line_is_read_or_refused():
    post = parse_line(b'{"iteration": 7, "loss": 0.5, "metrics": {"top5": 0.9}, "text": "x"}')
    assert post == Post(iteration=7, metrics={"loss": 0.5, "top5": 0.9})
    for line in (b"step 5", b"[1]", b"\xff", b"[" * 100_000, b'{"a": ' + b"9" * 5000):
        with pytest.raises(NotProgress):
            parse_line(line)


def test_repeated_iteration_after_a_start_is_its_first_step():
    meter = Meter()
    meter.begin(0.0)
    run_steadily(meter, begin=1.0, count=10, speed=1.0)
    meter.begin(20.0)
    # The last iteration came after the checkpoint, and is repeated.
    meter.observe(25.0, Post(iteration=9))
    assert meter.progress(26.0).begun
    assert meter.progress(26.0).idle_seconds == pytest.approx(1.0)


def test_samples_and_tokens_become_iterations():
    for name in ("sample", "samples", "token", "tokens"):
        reported = parse_groups({name: "1,300", "loss": "0.5", "step": "9"})
        assert in_iterations(reported, 64) == Post(iteration=20, metrics={"loss": 0.5})
        assert in_iterations(reported, 0) == reported
    assert in_iterations(Post(iteration=3), 64) == Post(iteration=3)


def test_samples_keep_progress_and_speed_across_widths():
    """Steps of 32 samples on one GPU become steps of 128 on four, and are as fast as before."""
    in_samples, in_steps = Meter(), Meter()
    samples = 0
    for begin, gpus, steps in ((0.0, 1, 200), (100.0, 4, 100)):
        for meter in (in_samples, in_steps):
            meter.begin(begin)
        first = samples // (32 * gpus)
        for step in range(steps):
            samples += 32 * gpus
            reported = Post(iteration=first + step, metrics={"sample": float(samples)})
            in_samples.observe(begin + step / 4.0, in_iterations(reported, 32))
            in_steps.observe(begin + step / 4.0, reported)
    assert (in_samples.iteration, in_samples.metrics) == (600, {})
    assert in_samples.iterations_per_second == pytest.approx(16.0)
    # Counted in steps it seems to lose half of its work, and to be no faster on four GPUs.
    assert in_steps.iteration == 149
    assert in_steps.iterations_per_second == pytest.approx(4.0)


def counted(*reports: int | str) -> list[int]:
    """Return the iteration after each report; ``start`` begins another start of the training."""
    meter, found = Meter(), []
    for second, report in enumerate(reports):
        if isinstance(report, str):
            meter.begin(float(second))
        else:
            meter.observe(float(second), Post(iteration=report))
            found.append(meter.progress(float(second)).iteration)
    return found


EPOCH = (1, 40, 80, 120, 150)


@pytest.mark.parametrize(
    "lines",
    [
        pytest.param(EPOCH * 4, id="a bar for each epoch"),
        pytest.param((*EPOCH, 1, 10, 20) * 4, id="a shorter bar of a validation"),
        pytest.param((*EPOCH, 1, 10, 20, 150) * 4, id="and the bar of the epoch again"),
        pytest.param((1, 2, *EPOCH * 4), id="a sanity check before"),
        pytest.param((1, 40, 80, 120, 150, 1, 149) * 4, id="a rank that is behind"),
        pytest.param((*range(0, 201, 20), 1, 10, 20, *range(220, 601, 20)), id="one bar for all"),
    ],
)
def test_each_step_is_counted_once(lines: tuple[int, ...]):
    # The bar of a validation after the last epoch is not known as such yet.
    assert 600 <= max(counted(*lines)) <= 620


def test_counter_of_each_epoch_is_accumulated():
    assert counted(50, 150, 1, 75, 150, 2, 60) == [50, 150, 151, 225, 300, 302, 360]


@pytest.mark.parametrize(
    ("reports", "lap"),
    [
        ((1, 75, 150), 0),
        ((1, 75, 150, 1), 150),
        ((1, 75, 150, 1, 75, 150, 1), 150),
        # A bar of an evaluation, which may be the next epoch at first.
        ((1, 75, 150, 1, 10), 150),
        ((1, 75, 150, 1, 10, 151), 0),
    ],
)
def test_length_of_an_epoch_is_reported(reports: tuple[int, ...], lap: int):
    meter = Meter()
    for second, report in enumerate(reports):
        meter.observe(float(second), Post(iteration=report))
    assert meter.progress(9.0).lap == lap


def test_unordered_ranks_begin_no_epoch():
    assert counted(99, 100, 99, 101, 100, 102) == [99, 100, 99, 101, 100, 102]


def test_start_resumes_in_the_epoch_of_its_checkpoint():
    assert counted(150, 1, 75, 150, 1, 60, 90, "start", 60, 61)[-3:] == [390, 360, 361]
    # It was made after the latest report.
    assert counted(150, 1, 50, "start", 53, 54)[-2:] == [203, 204]
    # The checkpoint is of the end of the epoch before.
    assert counted(150, 1, 75, 150, 1, 60, 90, "start", 140, 141)[-2:] == [290, 291]
    # A counter over all epochs that resumes far behind is lost work.
    assert counted(900, 1000, "start", 100, 101)[-2:] == [100, 101]
    # Nor is a start from scratch.
    assert counted(150, 1, 75, 150, 1, 60, "start", 1, 2)[-2:] == [1, 2]


def test_last_line_of_an_epoch_is_kept():
    expression = re.compile(r"(?P<iteration>\d+)/150")
    lines = [f"{step}/150".encode() for step in (148, 149, 150, 0, 1)]
    found = match_lines(expression, None, lines=lines)
    assert [each["iteration"] for each in found] == ["150", "1"]
    out_of_order = [f"{step}/150".encode() for step in (100, 99, 101)]
    assert match_lines(expression, None, lines=out_of_order) == [{"iteration": "101"}]
