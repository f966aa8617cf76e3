"""
DLJob as its chart installs it, beside a Kueue with its own rights that manages pods, too.

The operator has all rights on Kueue's objects that it uses, and no other. Its policies keep jobs in their queues, and the
operator away from the Workloads of others. Kueue leaves the pods of DLJobs in queues alone.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.chart.helms import Helm, Rendered
from tests.operator.kubelets import ROOT
from tests.operator.queues import (
    CLASS_LABEL,
    QUEUE_LABEL,
    VERSION,
    A,
    B,
    add_priority_class,
    gpus,
    kueue_of_teams,
    make_local_queue,
    stage_of_teams,
    start_operator,
    submit,
    submit_other,
    workloads,
)
from tests.operator.rights import HOME, POLICY, Right, iter_rights, used
from tests.operator.stages import Stage, install
from tests.servers.api import Json, Refused
from tests.servers.controlplane import Wishes
from tests.servers.queueing import KUEUE_API, Kueue

pytestmark = [pytest.mark.cluster, pytest.mark.processes]

GATE = {"name": "kueue.x-k8s.io/admission"}
PROGRAMS = {"Deployment", "Service", "PodDisruptionBudget"}


@pytest.fixture(scope="module")
def chart(tmp_path_factory: pytest.TempPathFactory) -> Rendered:
    helm = Helm(tmp_path_factory.mktemp("helm"))
    return helm.render({"settings": {"kueue": {"enabled": True}}}, "--no-hooks")


@pytest.fixture(scope="module")
def kueue(chart: Rendered, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kueue]:
    folder = tmp_path_factory.mktemp("kueue")
    wishes = Wishes(audit_policy=POLICY)
    with kueue_of_teams(folder, wishes=wishes, frameworks=("batch/job", "pod")) as kueue:
        with kueue.plane.api() as api:
            install(api)
            api.post("/api/v1/namespaces", {"metadata": {"name": HOME}})
        kubectl = kueue.plane.kubectl
        kubectl("apply", "-f", ROOT / "manifests" / "kueue" / "rights.yaml")
        items = [each for each in chart if each["kind"] not in PROGRAMS]
        made = {"apiVersion": "v1", "kind": "List", "items": items}
        kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", stdin=json.dumps(made))
        yield kueue


@pytest.fixture
def stage(kueue: Kueue, tmp_path: Path) -> Iterator[Stage]:
    """The operators have the rights of the chart."""
    with stage_of_teams(kueue, tmp_path) as stage:
        stage.kubeconfig = kueue.plane.kubeconfig_for_service_account(HOME, "dljob-operator")
        yield stage


def start(stage: Stage) -> None:
    start_operator(stage, namespace=HOME, watched="")


def test_operator_uses_exactly_its_rights_on_kueue(chart: Rendered, kueue: Kueue, stage: Stage):
    start(stage)
    add_priority_class(stage.api, "high", 1000)
    submit(stage, "wide", A, labels={CLASS_LABEL: "high"})
    stage.wait(lambda: gpus(stage, "wide") == 4)
    assert workloads(stage)["wide-0-1"]["spec"]["priority"] == 1000
    submit(stage, "new", B, gpus={"options": [2]})
    stage.wait(lambda: gpus(stage, "new") == 2 and gpus(stage, "wide") == 2)
    stage.api.delete(stage.path("wide"))
    stage.api.merge(stage.path("new"), {"spec": {"suspend": True}})
    stage.wait(lambda: workloads(stage) == {})
    stage.operators[-1].stop()
    ours = [rule for each in chart for rule in each.get("rules", ())]
    granted = set(iter_rights(r for r in ours if r.get("apiGroups") == ["kueue.x-k8s.io"]))
    kinds = {right.resource for right in granted}
    asked = {right for right in used(kueue.plane.audit_log) if right.resource in kinds}
    assert {Right(right.verb, right.resource) for right in asked} == granted


def test_job_with_gpus_stays_in_its_queue(kueue: Kueue, stage: Stage):
    start(stage)
    submit(stage, "net", A)
    stage.wait(lambda: gpus(stage, "net") == 4)
    kubectl = kueue.plane.kubectl.in_namespace(stage.namespace)
    for change in (f"{QUEUE_LABEL}={B}", f"{QUEUE_LABEL}-"):
        said = kubectl.try_to("label", "--overwrite", "dljob/net", change)
        assert "cannot change while the job has GPUs; suspend the job first" in said.err, said
    kubectl("label", "dljob/net", "team=blue")
    stage.api.merge(stage.path("net"), {"spec": {"suspend": True}})
    stage.wait(lambda: workloads(stage) == {})
    kubectl("label", "--overwrite", "dljob/net", f"{QUEUE_LABEL}={B}")
    stage.api.merge(stage.path("net"), {"spec": {"suspend": False}})
    stage.wait(lambda: gpus(stage, "net") == 4)
    assert {each["spec"]["queueName"] for each in workloads(stage).values()} == {B}


def test_operator_may_only_write_workloads_of_jobs(kueue: Kueue, stage: Stage):
    submit(stage, "net", A)
    uid = stage.job("net")["metadata"]["uid"]
    owner = {"apiVersion": "dljob.io/v1alpha1", "kind": "DLJob", "name": "net", "uid": uid}
    submit_other(stage, A, 1)
    refusal = "makes, changes and deletes only Workloads that a DLJob controls"
    path = f"{KUEUE_API}/namespaces/{stage.namespace}/workloads"
    spec, change = workloads(stage)["other"]["spec"], {"status": {"requeueState": None}}

    def make(*owners: Json) -> Json:
        metadata = {"name": "made", "ownerReferences": list(owners)}
        return {"apiVersion": VERSION, "kind": "Workload", "metadata": metadata, "spec": spec}

    with kueue.plane.api(stage.kubeconfig) as operator:

        def is_refused(*owners: Json) -> bool:
            try:
                operator.post(path, make(*owners), dryRun="All")
            except Refused as refused:
                return refusal in str(refused)
            return False

        # The policy holds a moment after it is there.
        stage.wait(lambda: is_refused() and is_refused(owner))
        operator.post(path, make({**owner, "controller": True}))
        operator.merge(f"{path}/made/status", change)
        with pytest.raises(Refused, match=refusal):
            operator.merge(f"{path}/other/status", change)
        with pytest.raises(Refused, match=refusal):
            operator.delete(f"{path}/other")
        operator.delete(f"{path}/made")


def test_only_the_operator_makes_layers(stage: Stage):
    submit_other(stage, A, 1)
    path = f"{KUEUE_API}/namespaces/{stage.namespace}/workloads"
    spec, labels = workloads(stage)["other"]["spec"], {"dljob.io/layer": "0-1"}
    made = {"apiVersion": VERSION, "kind": "Workload", "spec": spec}
    refusal = "only the operator of DLJob makes layers"
    with pytest.raises(Refused, match=refusal):
        stage.api.post(path, {**made, "metadata": {"name": "forged", "labels": labels}})
    with pytest.raises(Refused, match=refusal):
        stage.api.merge(f"{path}/other", {"metadata": {"labels": labels}})
    start(stage)
    submit(stage, "net", A, gpus={"options": [1]})
    stage.wait(lambda: "net-0-1" in workloads(stage))
    for change in (
        {"spec": {"podSets": [{**spec["podSets"][0], "count": 2}]}},
        {"metadata": {"labels": None}},
    ):
        with pytest.raises(Refused, match=refusal):
            stage.api.merge(f"{path}/net-0-1", change)


def test_kueue_leaves_the_pods_of_jobs_in_queues_alone(stage: Stage):
    # Kueue holds any other pod in a queue back.
    container = {"name": "c", "image": "none"}
    pod: Any = {"metadata": {"name": "plain"}, "spec": {"containers": [container]}}
    pod["metadata"]["labels"] = {QUEUE_LABEL: A, "dljob.io/job": ""}
    made = stage.api.post(stage.pod_path(), pod)
    assert GATE in made["spec"]["schedulingGates"]
    start(stage)
    submit(stage, "net", A, gpus={"options": [2]})
    stage.submit("free", iterations=10**6, gpus={"options": [2]})
    stage.wait(lambda: gpus(stage, "net") == 2 and gpus(stage, "free") == 2)
    for job in ("net", "free"):
        [pod] = stage.pods_of(job)
        assert "schedulingGates" not in pod["spec"]
    assert {name for name in workloads(stage) if "plain" not in name} == {"net-0-2"}


def test_default_queue_holds_back_pods_of_jobs_without_a_label(stage: Stage):
    make_local_queue(stage.api, "default", stage.namespace)
    start(stage)
    stage.submit("free", iterations=10**6)
    stage.wait(lambda: stage.pods_of("free"))
    [pod] = stage.pods_of("free")
    assert GATE in pod["spec"]["schedulingGates"]
    stage.api.delete(f"{KUEUE_API}/namespaces/{stage.namespace}/localqueues/default")
