"""The API server accepts some changes to a running job and refuses the others with the reason."""

from typing import Any

import pytest

from dlcore.documents.jobschema import FIXED_FIELDS
from tests.operator.manifests import LEAST, make_manifest, merged, path_of, set_phase
from tests.operator.refusing import told
from tests.servers.api import Api, Json, Refused
from tests.servers.controlplane import ControlPlane

pytestmark = pytest.mark.cluster

TRAINER = LEAST["template"]["spec"]["containers"][0]
AUXILIARY: Json = {
    "name": "ps",
    "template": {"spec": {"containers": [{"name": "a", "image": "x"}]}},
}


def with_trainer(**fields: Any) -> Json:
    return {"template": {"spec": {"containers": [{**TRAINER, **fields}]}}}


FIXED: dict[str, list[Json]] = {
    "framework": [{"framework": "pytorch"}],
    "processes": [{"processes": "perNode"}],
    "training": [{"training": {"iterations": 2000}}, {"training": {"batchSize": 64}}],
    "profile": [{"profile": {"model": "resnet18"}}],
    "progress": [
        {"progress": {"stallSeconds": 30}},
        {"progress": {"http": False, "log": "(?P<iteration>x)"}},
    ],
    "checkpoint": [{"checkpoint": {"path": "/ckpt"}}, {"checkpoint": {"graceSeconds": 20}}],
    "environment": [{"environment": {"python": "/opt/env/bin/python"}}],
    "warmStart": [{"warmStart": {"preload": ["torch"]}}],
    "batch": [{"batch": {"elastic": False}}],
    "auxiliaries": [{"auxiliaries": [AUXILIARY]}],
    "template": [
        with_trainer(command=["python", "other.py"]),
        with_trainer(image="y"),
        with_trainer(env=[{"name": "A", "value": "1"}]),
        {"template": {"spec": {"nodeSelector": {"a": "b"}}}},
        {"template": {"metadata": {"labels": {"a": "b"}}}},
    ],
}
FREE: list[Json] = [
    {"gpus": {"options": [1, 2, 4]}},
    {"gpus": {"options": None, "max": 8}},
    {"priority": 7},
    {"suspend": True},
    {"ttlSecondsAfterFinished": 60},
    {"activeDeadlineSeconds": 60},
    {"backoffLimit": 0},
]
ALL_FIXED = [(name, change) for name, changes in FIXED.items() for change in changes]


@pytest.fixture(scope="module")
def api(cluster: ControlPlane):
    with cluster.api() as api:
        yield api


def submit(api: Api, namespace: str, phase: str) -> str:
    """Submit a job that is in this phase, and return its path."""
    api.post(path_of(namespace), make_manifest("job"))
    set_phase(api, namespace, "job", phase)
    return path_of(namespace, "job")


def test_every_field_that_may_not_change_is_tried():
    assert list(FIXED) == list(FIXED_FIELDS)


@pytest.mark.parametrize(("name", "change"), ALL_FIXED)
def test_while_it_runs_it_may_not_change_and_hears_why(
    api: Api, namespace: str, name: str, change: Json
):
    job = submit(api, namespace, "Running")
    with pytest.raises(Refused) as refused:
        api.merge(job, {"spec": change})
    because = f"{name} cannot change while the job runs, because {FIXED_FIELDS[name]}"
    remedy = "change it back, or cancel the job and submit it again"
    assert told(refused.value) == [f"spec: {because}; {remedy}"]


def test_of_several_that_may_not_change_the_first_is_told(api: Api, namespace: str):
    job = submit(api, namespace, "Running")
    with pytest.raises(Refused, match=r"^\S.*training cannot change while") as refused:
        api.merge(job, {"spec": {"training": {"iterations": 5}, "checkpoint": {"path": "/c"}}})
    assert len(told(refused.value)) == 1


def test_who_counts_a_write_of_the_status_writes_no_spec_with_it(api: Api, namespace: str):
    job = submit(api, namespace, "Running")
    api.merge(f"{job}/status", {"status": {"revision": 1}})
    change = {"spec": {"training": {"iterations": 5}}, "status": {"revision": 2}}
    with pytest.raises(Refused, match="training cannot change while the job runs"):
        api.merge(job, change)
    api.merge(f"{job}/status", change)
    assert api.get(job)["spec"]["training"]["iterations"] == LEAST["training"]["iterations"]
    assert api.get(job)["status"]["revision"] == 2


@pytest.mark.parametrize(("name", "change"), [(name, change[0]) for name, change in FIXED.items()])
def test_what_was_given_may_not_be_taken_away(api: Api, namespace: str, name: str, change: Json):
    given = make_manifest("job", **merged(LEAST, change))
    api.post(path_of(namespace), given)
    set_phase(api, namespace, "job", "Adjusting")
    before = api.get(path_of(namespace, "job"))
    taken = {**before, "spec": {**LEAST, "template": before["spec"]["template"]}}
    if name == "template":
        taken["spec"]["template"] = LEAST["template"]
    with pytest.raises(Refused, match=f"{name} cannot change while the job runs"):
        api.put(path_of(namespace, "job"), taken)


@pytest.mark.parametrize("phase", ["Submitted", "Queued", "Suspended"])
def test_before_it_runs_everything_may_change(api: Api, namespace: str, phase: str):
    job = submit(api, namespace, phase)
    for _, change in ALL_FIXED:
        fits = api.merge(job, {"spec": change}, dryRun="All")
        assert fits["spec"]


@pytest.mark.parametrize("change", FREE)
@pytest.mark.parametrize("phase", ["Initialized", "Running", "Adjusting"])
def test_what_may_change_changes_while_it_runs(api: Api, namespace: str, phase: str, change: Json):
    job = submit(api, namespace, phase)
    generation = api.get(job)["metadata"]["generation"]
    assert api.merge(job, {"spec": change})["metadata"]["generation"] == generation + 1


def test_what_is_applied_again_is_no_change(api: Api, namespace: str):
    job = submit(api, namespace, "Running")
    again = api.get(job)
    for name in ("managedFields", "resourceVersion", "uid"):
        again["metadata"].pop(name)
    answer = api.apply(job, again, manager="user", force="true")
    assert answer["metadata"]["generation"] == 1
