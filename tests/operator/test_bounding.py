"""The API server accepts every status, even one from absurd reports."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dljob.control.situation.status import Condition, ConditionType, Status
from dljob.control.situation.status_documents import read_status
from dljob.control.situation.status_schema import MANY, STATUS
from dljob.operator.jobs.columns import bounded
from dljob.operator.jobs.entries import status_document

WILD = st.floats(allow_nan=True, allow_infinity=True)
NAMES = st.text(max_size=80)


def written(status: Status) -> dict[str, object]:
    document = status_document(status, epoch=1, generation=1)
    assert STATUS.collect(document)[1] == []
    return document


@given(
    iteration=st.integers(min_value=0),
    speed=WILD,
    metric=WILD,
    code=st.integers(),
    message=st.sampled_from(["é" * 5000, "\n" * 5000, "\0", ""]),
    reason=NAMES,
)
def test_absurd_reports_make_a_valid_status(iteration, speed, metric, code, message, reason):
    told = Condition(ConditionType.TROUBLED, status=True, reason=reason, message=message, since=1.0)
    status = Status(
        iteration=iteration,
        iterations_total=100.0,
        speed=speed,
        metric=metric,
        exit_code=code,
        message=message,
    )
    read_status(written(status.with_condition(told, 1.0)))


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ({"iteration": 10**400}, MANY),
        ({"iteration": -5}, 0),
        ({"metric": 1e300}, MANY),
        ({"metric": -math.inf}, -MANY),
        ({"metric": math.nan}, None),
        ({"iterationsPerSecond": 2.5}, 2.5),
    ],
)
def test_number_is_written_as_the_nearest_valid_one(given, kept):
    (name,) = given
    assert bounded(STATUS, {"progress": given})["progress"].get(name) == kept
