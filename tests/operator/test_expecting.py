"""Which changes of the queue are written into a job's status."""

import pytest

from dljob.control.situation.status_documents import write_time
from dljob.core.model import JobId
from dljob.operator.reporting.expecting import (
    FIRST_AT_ONCE,
    MOVED_AT_ONCE,
    Due,
    is_news,
    pick_writes,
)

NOW = 1e9


def starts(ahead, seconds):
    return {"ahead": ahead, "expectedStart": write_time(NOW + seconds)}


UNKNOWN = {"ahead": 0, "unknownBecause": "how long a trains is not known"}


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (None, None, False),
        (None, starts(0, 60.0), True),
        (starts(0, 60.0), None, True),
        (starts(0, 60.0), starts(0, 60.0), False),
        (starts(0, 60.0), starts(0, 69.0), False),
        (starts(0, 60.0), starts(0, 75.0), True),
        (starts(0, 3600.0), starts(0, 3800.0), False),
        (starts(0, 3600.0), starts(0, 4100.0), True),
        (starts(1, 60.0), starts(0, 60.0), True),
        (starts(100, 60.0), starts(95, 60.0), False),
        (starts(100, 60.0), starts(90, 60.0), True),
        (starts(0, 60.0), UNKNOWN, True),
        (UNKNOWN, starts(0, 60.0), True),
        (UNKNOWN, UNKNOWN, False),
        (UNKNOWN, {**UNKNOWN, "unknownBecause": "how long b trains is not known"}, True),
    ],
)
def test_change_by_a_tenth_is_written(old, new, expected):
    assert is_news(old, new, now=NOW) is expected


def due(job, ahead, *, is_correction=False):
    return Due(ahead, JobId(job), starts(ahead, 60.0), is_correction)


def test_round_writes_few_corrections_and_many_first_values():
    moved = [due(f"old-{at}", at, is_correction=True) for at in range(2 * MOVED_AT_ONCE)]
    firsts = [due(f"new-{at}", at) for at in range(FIRST_AT_ONCE - 1)]
    over = Due(0, JobId("runs"), None, is_correction=False)
    picked = pick_writes([due("late", 10**6), *reversed(firsts), *reversed(moved), over])
    assert [each.ahead for each in picked] == sorted(each.ahead for each in picked)
    assert {each.job for each in picked} == {
        *(each.job for each in moved[:MOVED_AT_ONCE]),
        *(each.job for each in firsts),
        over.job,
    }
