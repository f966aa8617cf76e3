"""Which refusals concern the status of one job, and which all writes."""

import pytest

from dljob.control.situation.ports import Fenced, NotKept, NotKeptAlone
from dljob.core.model import JobId
from dljob.kube.client import Rejected, Unreachable
from dljob.operator.jobs.status_writing import not_kept, raise_worst

JOB, OTHER = JobId("lab/job"), JobId("lab/other")


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (403, 'admission webhook "rules.example.com" denied the request'),
        (413, "Request entity too large: limit is 3145728"),
        (422, "metadata.finalizers: Forbidden: no new finalizers can be added"),
        (500, "etcdserver: request is too large"),
        (500, 'Internal error occurred: failed calling webhook "rules.example.com": no endpoints'),
    ],
)
def test_refusal_of_one_status_concerns_that_job(status: int, message: str):
    error = not_kept(JOB, Rejected(status, {"message": message}))
    assert isinstance(error, NotKeptAlone)
    assert error.jobs == {JOB: f"its status cannot be written: {message}"}


@pytest.mark.parametrize(
    "error",
    [
        Unreachable("the API server does not answer"),
        Rejected(401, {"message": "Unauthorized"}),
        Rejected(429, {"message": "too many requests, please try again later"}),
        Rejected(500, {"message": "etcdserver: leader changed"}),
        Rejected(504, {"message": "Timeout: request did not complete within the allotted time"}),
    ],
)
def test_other_errors_concern_all_jobs(error: Rejected | Unreachable):
    assert isinstance(not_kept(JOB, error), NotKept)


def test_worst_of_several_failures_counts():
    alone, other = NotKeptAlone({JOB: "it is odd"}), NotKeptAlone({OTHER: "it is odder"})
    raise_worst([None, None])
    with pytest.raises(NotKeptAlone) as caught:
        raise_worst([alone, None, other])
    assert caught.value.jobs == {JOB: "it is odd", OTHER: "it is odder"}
    with pytest.raises(NotKept):
        raise_worst([alone, NotKept("the API server is away"), other])
    with pytest.raises(Fenced):
        raise_worst([alone, NotKept("the API server is away"), Fenced("another leads")])
