"""The API server accepts some changes of a running job and refuses others with the reason."""

from typing import Any

import pytest

from dljob.core.documents.jobschema import FIXED_FIELDS
from tests.operator.manifests import LEAST, make_manifest, merged, path_of, set_phase
from tests.operator.refusing import told
from tests.servers.api import Api, Json, Refused

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
    "liveSeconds": [{"liveSeconds": 5}, {"liveSeconds": 0}],
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


def submit(api: Api, namespace: str, phase: str) -> str:
    """Submit a job in this phase; return its path."""
    api.post(path_of(namespace), make_manifest("job"))
    set_phase(api, namespace, "job", phase)
    return path_of(namespace, "job")


@pytest.mark.story
def test_fixed_fields_of_a_running_job_cannot_change(api: Api, namespace: str):
    assert list(FIXED) == list(FIXED_FIELDS), "all fixed fields are tried"
    job = submit(api, namespace, "Running")
    for name, change in ALL_FIXED:
        with pytest.raises(Refused) as refused:
            api.merge(job, {"spec": change})
        because = f"{name} cannot change while the job runs, because {FIXED_FIELDS[name]}"
        remedy = "change it back, or cancel the job and submit it again"
        assert told(refused.value) == [f"spec: {because}; {remedy}"]
    for phase in ("Initialized", "Running", "Adjusting"):
        set_phase(api, namespace, "job", phase)
        for change in FREE:
            assert api.merge(job, {"spec": change}, dryRun="All")["spec"], (phase, change)


def test_all_fields_can_change_before_it_runs(api: Api, namespace: str):
    job = submit(api, namespace, "Submitted")
    for phase in ("Submitted", "Queued", "Suspended"):
        set_phase(api, namespace, "job", phase)
        for _, change in ALL_FIXED:
            assert api.merge(job, {"spec": change}, dryRun="All")["spec"], (phase, change)


def test_fixed_fields_cannot_be_removed(api: Api, namespace: str):
    for name, (change, *_) in FIXED.items():
        path = path_of(namespace, name.lower())
        api.post(path_of(namespace), make_manifest(name.lower(), **merged(LEAST, change)))
        set_phase(api, namespace, name.lower(), "Adjusting")
        before = api.get(path)
        taken = {**before, "spec": {**LEAST, "template": before["spec"]["template"]}}
        if name == "template":
            taken["spec"]["template"] = LEAST["template"]
        with pytest.raises(Refused, match=f"{name} cannot change while the job runs"):
            api.put(path, taken)


def test_status_writes_do_not_write_the_spec(api: Api, namespace: str):
    job = submit(api, namespace, "Running")
    api.merge(f"{job}/status", {"status": {"revision": 1}})
    change = {"spec": {"training": {"iterations": 5}}, "status": {"revision": 2}}
    with pytest.raises(Refused, match="training cannot change while the job runs"):
        api.merge(job, change)
    api.merge(f"{job}/status", change)
    assert api.get(job)["spec"]["training"]["iterations"] == LEAST["training"]["iterations"]
    assert api.get(job)["status"]["revision"] == 2
