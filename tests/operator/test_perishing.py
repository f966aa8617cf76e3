"""The operator and the API server find checkpoints that end with their pod from the template."""

import json
from typing import Any

import pytest

from dljob.control.acting.sidecar_options import on_cluster
from dljob.core.documents import jobfile
from tests.servers.api import Json
from tests.servers.namespaces import make_namespace, remove_namespace

EMPTY_DIR = {"name": "saved", "emptyDir": {}}
EPHEMERAL = {"name": "saved", "ephemeral": {"volumeClaimTemplate": {"spec": {}}}}
CLAIM = {"name": "saved", "persistentVolumeClaim": {"claimName": "saved"}}
HOST = {"name": "saved", "hostPath": {"path": "/data"}}
MOUNT = {"name": "saved", "mountPath": "/ckpt"}
OWN = "$(DLJOB_CHECKPOINT_DIR)/best"
AT = {"name": "DLJOB_CHECKPOINT_DIR", "value": "/ckpt/digits"}


def job(path: str = "", volumes: Any = (), mounts: Any = (), *, env: Any = (), **more: Any) -> Json:
    trainer = {"name": "trainer", "image": "digits", "command": ["python", "train.py"]}
    given = {"volumeMounts": mounts, "env": env, **more}
    trainer |= {name: value for name, value in given.items() if value}
    pod = {"containers": [trainer]} | ({"volumes": volumes} if volumes else {})
    return {
        "apiVersion": "dljob.io/v1alpha1",
        "kind": "DLJob",
        "metadata": {"name": "digits"},
        "spec": {
            "gpus": {"options": [1]},
            "training": {"iterations": 100},
            "progress": {"log": "step (?P<iteration>[0-9]+)"},
            "checkpoint": {"signal": "SIGUSR1"} | ({"path": path} if path else {}),
            "template": {"spec": pod},
        },
    }


CONTAINER = "the container's own file system"
INNER = [MOUNT, {"name": "inner", "mountPath": "/ckpt/digits/"}]

CASES = [
    pytest.param(job(), "", id="no path"),
    pytest.param(job("/ckpt/digits"), CONTAINER, id="no volume"),
    pytest.param(job("/ckpts", [HOST], [MOUNT]), CONTAINER, id="next to a volume"),
    pytest.param(job("/ckpt", [EMPTY_DIR], [MOUNT]), "the emptyDir volume saved", id="emptyDir"),
    pytest.param(
        job("/ckpt/digits", [EPHEMERAL], [MOUNT]),
        "the generic ephemeral volume saved",
        id="generic ephemeral volume",
    ),
    pytest.param(job("/ckpt/digits", [CLAIM], [MOUNT]), "", id="claim"),
    pytest.param(job("/ckpt", [HOST], [MOUNT]), "", id="folder of the node"),
    pytest.param(
        job("/ckpt/digits", [CLAIM, {"name": "inner", "emptyDir": {}}], INNER),
        "the emptyDir volume inner",
        id="emptyDir below a claim",
    ),
    pytest.param(
        job("/ckpt/digits", [EMPTY_DIR, CLAIM | {"name": "inner"}], INNER), "", id="the reverse"
    ),
    pytest.param(job("/x", [HOST], [MOUNT | {"mountPath": "/"}]), "", id="a volume at the root"),
    pytest.param(job(OWN, [EMPTY_DIR], [MOUNT], env=[AT]), "the emptyDir volume saved", id="named"),
    pytest.param(job(OWN, [HOST], [MOUNT], env=[AT]), "", id="named, on a folder of the node"),
    pytest.param(job(OWN), "", id="named nowhere"),
    pytest.param(
        job(OWN, env=[AT | {"value": "saved"}]), "", id="in a folder that depends on the image"
    ),
]


@pytest.mark.parametrize(("document", "place"), CASES)
def test_place_of_a_checkpoint_follows_from_the_template(document: Json, place: str):
    read = on_cluster(jobfile.parse(document, require_template=True))
    assert read.checkpoint.ends_with_pod == place


def test_claims_about_a_perishing_checkpoint_do_not_count():
    document = job("/ckpt", [EMPTY_DIR], [MOUNT])
    document["spec"]["checkpoint"] |= {"shared": True, "trusted": True}
    read = on_cluster(jobfile.parse(document, require_template=True)).checkpoint
    assert (read.shared, read.trusted) == (False, False)


@pytest.mark.parametrize("part", [{"volumes": "saved"}, {"volumes": ["saved"]}])
def test_invalid_template_is_read_in_any_case(part: Json):
    document = job("/ckpt", mounts=[MOUNT])
    document["spec"]["template"]["spec"] |= part
    read = on_cluster(jobfile.parse(document, require_template=True))
    assert read.checkpoint.ends_with_pod == ""


@pytest.mark.cluster
@pytest.mark.processes
@pytest.mark.story
def test_kubectl_warns_of_a_checkpoint_that_ends_with_its_pod(installed):
    with installed.api() as api:
        namespace = make_namespace(api)
        kubectl = installed.kubectl.in_namespace(namespace)
        for case in CASES:
            document, place = case.values
            words = ("create", "--dry-run=server", "-f", "-")
            said = kubectl.try_to(*words, stdin=json.dumps(document))
            assert said.code == 0, said.err
            assert ("which ends with the pod" in said.err) == bool(place), (case.id, said.err)
        remove_namespace(api, namespace)
