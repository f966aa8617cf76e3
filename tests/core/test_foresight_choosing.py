"""The number of GPUs for each job in ``foresight``: the knapsack at given prices."""

from collections.abc import Sequence

import pytest

from dljob.core.policies.foresight.bids import Bid
from dljob.core.policies.foresight.choosing import (
    EXACT_CELLS,
    choose,
    choose_by_type,
    choose_rest,
    list_options,
)
from tests.bids import make_bid

HORIZON = 500.0


def choose_counts(bids: Sequence[Bid], capacity: int, horizon: float = HORIZON) -> dict[str, int]:
    chosen = choose(bids, capacity, horizon=horizon)
    return {str(bid.state.id): gpus for bid, gpus in chosen.items()}


def test_many_jobs_are_shared_out_without_the_exact_table():
    speeds = {1: 1.0, 4: 2.5, 16: 5.0}
    bids = [make_bid(f"job{n}", speeds, price=1.0 + n / 400, order=n) for n in range(400)]
    assert len(bids) * 1000 > EXACT_CELLS
    chosen = choose(bids, 1000, horizon=HORIZON)
    # As many as fit have four, the dearest ones; the others have one.
    assert sum(chosen.values()) == 1000
    assert len(chosen) == 400
    fours = [n for n, bid in enumerate(bids) if chosen[bid] == 4]
    assert fours == list(range(200, 400))


def test_only_the_most_valuable_waiting_jobs_are_considered():
    bids = [make_bid(f"job{n}", {1: 1.0}, price=float(n % 10), order=n) for n in range(30)]
    assert set(choose_counts(bids, 4)) == {"job9", "job19", "job29", "job8"}


def test_running_job_shrinks_for_a_more_valuable_newcomer():
    held = make_bid("held", {2: 1.5, 4: 2.0}, holds=4)
    new = make_bid("new", {2: 1.5}, order=1)
    assert choose_counts([held, new], 4) == {"held": 2, "new": 2}


def test_change_must_pay_within_the_horizon():
    # From 1 to 1.2 iterations a second pays for 60 lost seconds after 360 seconds.
    for horizon, gpus in ((300.0, 1), (420.0, 2)):
        bid = make_bid(speeds={1: 1.0, 2: 1.2}, holds=1, cost=60.0, left=10_000.0)
        assert choose_counts([bid], 2, horizon) == {"job": gpus}


def test_first_start_is_free_and_a_resume_costs_half():
    new = make_bid(speeds={1: 1.0}, cost=100.0)
    resumes = make_bid(speeds={1: 1.0}, cost=100.0, started_at=1.0)
    runs = make_bid(speeds={1: 1.0}, cost=100.0, holds=1)
    assert [bid.cost_of(1) for bid in (new, resumes, runs)] == [0.0, 50.0, 100.0]


def test_small_gain_does_not_stop_a_running_job():
    runs = make_bid("runs", {1: 1.0}, holds=1, cost=50.0)
    little = make_bid("new", {1: 1.0}, price=1.05, order=1)
    much = make_bid("new", {1: 1.0}, price=1.5, order=1)
    assert choose_counts([runs, little], 1) == {"runs": 1}
    assert choose_counts([runs, much], 1) == {"new": 1}


def test_job_keeps_useless_gpus_until_another_wants_them():
    bid = make_bid(speeds={2: 2.0, 4: 1.99}, holds=4, cost=400.0)
    assert choose_counts([bid], 8) == {"job": 4}
    assert choose_counts([bid, make_bid("new", {4: 2.0}, price=5.0, order=1)], 6) == {
        "job": 2,
        "new": 4,
    }


def test_broken_gpus_weigh_nothing():
    bid = make_bid(speeds={1: 1.0, 2: 1.5, 3: 1.8, 4: 2.0, 8: 2.5}, holds=4)
    bid.usable = 2
    options = list_options(bid, 8, horizon=HORIZON)
    assert {gpus: weight for gpus, weight, _ in options} == {0: 0, 1: 1, 2: 2, 3: 2, 4: 2, 8: 6}


def make_two_types(*, usable: int) -> tuple[Bid, Bid, Bid]:
    """One job on four T4, of which ``usable`` work, and two jobs that would rather have V100."""
    speeds = {"V100": {2: 4.0}, "T4": {2: 1.0}}
    runs = make_bid("runs", {4: 2.0}, price=10.0, holds=4, gpu_type="T4")
    runs.usable = usable
    first = make_bid("first", types=speeds, gpu_type="V100", price=2.0, order=1)
    return runs, first, make_bid("second", types=speeds, gpu_type="V100", order=2)


@pytest.mark.parametrize(("usable", "others"), [(4, ["first"]), (2, ["first", "second"])])
def test_broken_gpus_do_not_reduce_the_rest_of_a_type(usable, others):
    bids = make_two_types(usable=usable)
    capacities = {"T4": 4, "V100": 2}
    chosen = choose_by_type(bids, capacities, horizon=HORIZON)
    chosen |= choose_rest(bids, capacities, chosen=chosen, horizon=HORIZON)
    assert {str(bid.state.id): gpus for bid, gpus in chosen.items()} == {
        "runs": 4,
        **dict.fromkeys(others, 2),
    }
    assert [bid.curve.gpu_type for bid in chosen] == ["T4", "V100", "T4"][: len(chosen)]


def test_options_follow_price_curve_and_horizon():
    bid = make_bid(types={"a": {1: 1.0, 2: 1.5}, "b": {1: 4.0, 2: 6.0}}, holds=1, gpu_type="a",
                   cost=30.0)  # fmt: skip

    def list_worths(horizon: float = HORIZON) -> list[float]:
        return [worth for _, _, worth in list_options(bid, 8, horizon=horizon)]

    def list_gpus(capacity: int) -> list[int]:
        return [gpus for gpus, _, _ in list_options(bid, capacity, horizon=HORIZON)]

    first = list_worths()
    assert list_worths() == first
    assert list_worths(horizon=100.0)[2] < first[2]
    bid.price *= 2.0
    dearer = list_worths()
    assert dearer == [2.0 * worth for worth in first]
    bid.curve = bid.curves[1]
    assert list_worths()[1] > dearer[1]
    # The choice for many GPUs is kept after a question about fewer.
    assert list_gpus(1) == [0, 1]
    assert list_gpus(8) == [0, 1, 2]
