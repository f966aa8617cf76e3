"""The controller reads each custom resource once, and reports its faults."""

import copy

import pytest

from dljob.control.situation.status import Status
from dljob.core.model import NodeName, Placement
from dljob.operator.jobs.entries import (
    Jobs,
    Specs,
    status_document,
    template_condition,
)
from tests.operator.manifests import make_manifest


def document(**spec):
    made = make_manifest("job")
    made["metadata"] |= {
        "namespace": "lab",
        "uid": "u-1",
        "generation": 1,
        "resourceVersion": "5",
        "creationTimestamp": "2026-01-01T00:00:00Z",
    }
    made["spec"] |= spec
    return made


def with_status(made, status):
    written = status_document(status, epoch=1, generation=made["metadata"]["generation"])
    return {**made, "status": written}


def changed(made, **spec):
    other = copy.deepcopy(made)
    other["metadata"]["generation"] += 1
    other["spec"] |= spec
    return other


@pytest.fixture
def jobs():
    return Jobs(Specs())


HAS_GPUS = Status().decided(Placement.of({NodeName("n"): [0]}), now=100.0)


def test_fixed_fields_can_change_once_the_job_has_no_gpus(jobs):
    made = with_status(document(), HAS_GPUS)
    jobs.read(made)
    template = copy.deepcopy(made["spec"]["template"])
    template["spec"]["containers"][0]["image"] = "another"
    edited = changed(made, template=template)
    assert "template" in jobs.read(edited).problem
    entry = jobs.read(with_status(edited, Status().decided(None, now=200.0)))
    assert entry.problem == ""
    assert entry.job.template["spec"]["containers"][0]["image"] == "another"


def test_unchanged_job_is_the_same_object(jobs):
    made = with_status(document(), HAS_GPUS)
    entry = jobs.read(made)
    later = copy.deepcopy(made)
    later["metadata"]["resourceVersion"] = "6"
    assert jobs.read(later) is entry


def test_job_of_the_same_name_is_another_job(jobs):
    jobs.read(with_status(document(), HAS_GPUS))
    other = document()
    other["metadata"]["uid"] = "u-2"
    assert jobs.read(other).status.placement is None


def test_unreadable_spec_keeps_the_job_and_is_reported(jobs):
    made = document()
    job = jobs.read(made).job
    entry = jobs.read(changed(made, gpus={"options": []}))
    assert entry.job is job
    assert "spec.gpus.options" in entry.problem
    healed = jobs.read(changed(changed(made), priority=3))
    assert (healed.problem, healed.job.priority) == ("", 3)


@pytest.mark.parametrize(
    ("phase", "told"), [("Running", "False"), ("Completed", "True"), ("Failed", "True")]
)
def test_template_of_an_ended_job_stays_valid(phase, told):
    known = {
        "type": "TemplateValid",
        "status": "True",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }
    made = {**document(), "status": {"phase": phase, "conditions": [known]}}
    condition = template_condition(made, "Kubernetes would refuse its pods")
    assert condition is not None
    assert condition["status"] == told
    untold = {**document(), "status": {"phase": phase}}
    assert (template_condition(untold, "") is None) == (phase != "Running")


def test_jobs_of_one_second_keep_their_order(jobs):
    orders = []
    for name in ("b", "a", "c"):
        made = document()
        made["metadata"] |= {"name": name, "uid": name}
        orders.append(jobs.read(made).order)
    assert orders == sorted(orders)
    later = document()
    later["metadata"] |= {"name": "d", "uid": "d", "creationTimestamp": "2026-01-01T00:00:01Z"}
    assert jobs.read(later).order > max(orders)
