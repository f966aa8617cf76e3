"""
The reader of a cloud's notices on a real control plane, with the rights and the token that its DaemonSet gives it.

Its pods are those of the DaemonSet, bound to nodes by kube-scheduler; only their process is started by the test.
"""

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from tests.cloud.metadata import azure_event, played_cloud
from tests.operator.kubelets import ROOT
from tests.operator.stages import Stage, staged
from tests.servers.api import Api, Json, Refused
from tests.servers.namespaces import empty_namespace
from tests.servers.processes import Server

pytestmark = [pytest.mark.cluster, pytest.mark.processes]

HOME = "dljob-cloud"
MANIFESTS = ROOT / "manifests" / "cloud"
OURS = {"key": "dljob.io/ending", "effect": "NoSchedule"}
POOL = {"key": "dljob.io/pool", "effect": "NoSchedule"}


@pytest.fixture
def stage(control_plane, namespace, tmp_path):
    with staged(control_plane, namespace, tmp_path, {"gpu-a": 2, "gpu-b": 2}) as stage:
        control_plane.kubectl("apply", "--server-side", "-k", MANIFESTS)
        yield stage
        # The DaemonSet goes first, or else it makes new pods, which no kubelet ends.
        control_plane.kubectl("delete", "daemonset", "--all", "--cascade=orphan", "-n", HOME)
        empty_namespace(stage.api, HOME)
        command = ("delete", "--ignore-not-found", "--wait=false", "-k", MANIFESTS)
        control_plane.kubectl(*command)


def taints(stage: Stage, node: str) -> list[Json]:
    found: list[Json] = stage.api.get(f"/api/v1/nodes/{node}")["spec"].get("taints", [])
    return found


def refusal(ask: Callable[[], Json]) -> str:
    """Return why the API server forbids a request; empty if it does not."""
    try:
        ask()
    except Refused as refused:
        if refused.code != 403:
            raise
        return str(refused)
    return ""


@pytest.mark.story
def test_a_job_leaves_the_node_whose_end_the_cloud_announces(stage: Stage):
    kubeconfig = account_of(stage, "gpu-a")
    with stage.plane.api(kubeconfig) as api:
        assert_only_the_own_taint(stage, api)
    stage.start_operator()
    stage.submit("net", iterations=10**6, gpus={"options": [2]})
    stage.wait(lambda: trains_on(stage, "net") and stage.status("net").get("progress"))
    home = node_of(stage, "net")
    other = {"gpu-a": "gpu-b", "gpu-b": "gpu-a"}[home]
    with played_cloud() as cloud:
        log = stage.folder / "reader.log"
        reader = start_reader(stage, home, address=cloud.address, log=log)
        before, done = taints(stage, home), stage.status("net")["progress"]["iteration"]
        cloud.events = [azure_event("Reboot", "Mon, 21 Jan 2019 09:00:43 GMT", "gpu-pool_1")]
        cloud.events += [azure_event("Preempt", "Mon, 21 Jan 2019 09:00:43 GMT")]
        stage.wait(lambda: OURS | {"value": "preempt"} in taints(stage, home))
        stage.wait(lambda: trains_on(stage, "net") and node_of(stage, "net") == other)
        assert stage.status("net").get("failures", 0) == 0
        assert stage.status("net")["progress"]["iteration"] >= done
        assert OURS["key"] not in {each["key"] for each in taints(stage, other)}
        cloud.events = []
        stage.wait(lambda: taints(stage, home) == before)
        reader.stop()

        # The taint of a reader that was killed goes with the next one.
        cloud.events = [azure_event("Preempt", "")]
        reader = start_reader(stage, home, address=cloud.address, log=log)
        stage.wait(lambda: OURS | {"value": "preempt"} in taints(stage, home))
        reader.kill()
        cloud.events = []
        start_reader(stage, home, address=cloud.address, log=log)
        stage.wait(lambda: taints(stage, home) == before)


def trains_on(stage: Stage, job: str) -> bool:
    return stage.status(job).get("phase") == "Running"


def node_of(stage: Stage, job: str) -> str:
    return str(stage.status(job)["allocation"]["nodes"][0]["name"])


def account_of(stage: Stage, node: str) -> Path:
    """Return the kubeconfig with the token that a kubelet gives to the reader on its node."""

    def pod() -> Json | None:
        pods = stage.api.get(f"/api/v1/namespaces/{HOME}/pods")["items"]
        return next((each for each in pods if each["spec"].get("nodeName") == node), None)

    found = stage.wait(pod)
    return stage.plane.kubeconfig_for_service_account(HOME, "dljob-cloud", pod=found)


def start_reader(stage: Stage, node: str, *, address: str, log: Path) -> Server:
    reader = Server(
        [
            "/usr/bin/env",
            f"PYTHONPATH={ROOT / 'operator'}:{ROOT / 'sidecar'}",
            *(sys.executable, "-m", "dlcloud", f"--kubeconfig={account_of(stage, node)}"),
            *(f"--node={node}", "--cloud=azure", f"--address={address}"),
        ],
        guard=stage.guard,
        log=log,
        is_ready=lambda: True,
    )
    reader.start()
    return reader


def assert_only_the_own_taint(stage: Stage, reader: Api) -> None:
    """Hold that the account changes nothing but this taint, and only on its own node."""
    own, other = "/api/v1/nodes/gpu-a", "/api/v1/nodes/gpu-b"

    def tainted(*more: Json) -> Json:
        return {"spec": {"taints": [POOL, *more]}}

    def why_not_other() -> str:
        # The API server learns of the policy a moment after its creation.
        return refusal(lambda: reader.merge(other, tainted(OURS), dryRun="All"))

    assert "only the node that it runs on" in stage.wait(why_not_other)
    assert reader.merge(own, tainted(OURS), dryRun="All")
    refused: list[Json] = [
        tainted({"key": "lab/works", "effect": "NoSchedule"}),
        tainted(OURS | {"effect": "NoExecute"}),
        {"spec": {"taints": []}},
        {"spec": {"unschedulable": True}},
        {"spec": {"providerID": "x://y"}},
        {"metadata": {"labels": {"a": "b"}}},
        {"metadata": {"annotations": {"dljob.io/cordoned-gpus": "{}"}}},
        {"metadata": {"finalizers": ["a/b"]}},
    ]
    for patch in refused:
        why = refusal(partial(reader.merge, own, patch, dryRun="All"))
        assert "of its node only the taint" in why, patch
    assert refusal(lambda: reader.merge(f"{own}/status", {"status": {}}, dryRun="All"))
    assert refusal(lambda: reader.get("/api/v1/nodes"))
    unbound = stage.plane.kubeconfig_for_service_account(HOME, "dljob-cloud")
    with stage.plane.api(unbound) as stranger:
        why = refusal(lambda: stranger.merge(own, tainted(OURS), dryRun="All"))
        assert "only the node that it runs on" in why
    policy = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies/dljob-cloud"
    status = stage.wait(lambda: (found := stage.api.get(policy)["status"]) and found)
    assert status["typeChecking"] == {}
