"""How long jobs wait, by the log of a run."""

import pytest

from dljob.core.profiles import Costs
from dljob.sim import policies
from dljob_lab.reproducing.waiting import waits_of
from tests.sim.worlds import Scripted, make_traced, play

FREE = Costs()


def test_a_job_waits_until_its_gang_is_complete():
    one = make_traced("one", options=(3,))
    two = make_traced("two", options=(4,), at=10.0)
    record = play((one, two), policies.make("kube-pods"), costs=FREE)
    # One of its pods is bound at once, and holds a GPU until the others are.
    [first, second] = record.jobs
    assert second.started_at == 10.0
    assert waits_of(record) == pytest.approx({"one": 0.0, "two": first.jct - 10.0})


def test_all_stays_in_the_queue_count():
    job = make_traced("job", options=(1,))
    other = make_traced("other", at=200.0, iterations=600.0, options=(4,))
    script = Scripted(
        {0: {}, 100: {"job": 1}, 200: {"job": None, "other": 4}, 350: {"job": 1}},
    )
    record = play((job, other), script, costs=FREE)
    assert waits_of(record) == {"job": 100.0 + 150.0, "other": 0.0}
