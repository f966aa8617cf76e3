"""``helm install``, ``upgrade`` and ``uninstall`` on a real control plane, without a disturbance of jobs."""

import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import yaml

from dljob.operator.jobs import crd
from tests.chart.helms import CHART, HOME
from tests.chart.releases import VIRTUAL, Release
from tests.operator.kubelets import ROOT
from tests.operator.stages import Stage, staged
from tests.servers.api import Json, Refused
from tests.servers.controlplane import ControlPlane
from tests.servers.kubectl import Said
from tests.servers.namespaces import make_namespace
from tests.sidecar.drivers import find_processes

pytestmark = [pytest.mark.cluster, pytest.mark.processes]

CRD = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{crd.NAME}"
DEPLOYMENT = f"/apis/apps/v1/namespaces/{HOME}/deployments/dljob-operator"
LONG = 10**6


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A control plane for this module, because a cluster has one release."""
    with ControlPlane(tmp_path_factory.mktemp("plane")) as plane:
        yield plane


@pytest.fixture
def release(plane: ControlPlane, tmp_path: Path) -> Iterator[Release]:
    """An object for a release, which is uninstalled at the end."""
    release = Release(plane, tmp_path)
    try:
        yield release
    finally:
        release.uninstall("--no-hooks")
        release.close()


@pytest.fixture
def namespace(plane: ControlPlane) -> str:
    with plane.api() as api:
        return make_namespace(api)


def is_there(release: Release, path: str) -> bool:
    try:
        release.find(path)
    except Refused as refused:
        return refused.code != 404
    return True


def succeed(said: Said) -> str:
    assert said.code == 0, said.err
    return said.out


def newer_chart(folder: Path) -> Path:
    """A later version of the chart, with one more field and another operator."""
    chart = folder / "newer"
    shutil.copytree(CHART, chart)
    file = chart / "files" / "dljobs.dljob.io.yaml"
    document = yaml.safe_load(file.read_text())
    version = document["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]
    version["status"]["properties"]["later"] = {"type": "string", "maxLength": 8}
    file.write_text(yaml.safe_dump(document, sort_keys=False))
    about = chart / "Chart.yaml"
    about.write_text(about.read_text().replace("ersion: 0.1.0", "ersion: 0.2.0"))
    return chart


def traces(stage: Stage, job: str) -> Json:
    """Facts that differ after a restart of any part of a job."""
    return {
        "pods": {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in stage.pods_of(job)},
        # The SideCar and the training have this path in their commands.
        "processes": sorted(find_processes(f"{stage.folder}/saved/{job}/")),
        "allocation": stage.status(job)["allocation"],
    }


def test_jobs_survive_upgrade_uninstall_and_reinstall(
    release: Release, namespace: str, tmp_path: Path
):
    told = succeed(release.install(VIRTUAL))
    assert "DLJob 0.1.0 is installed in namespace dljob-system" in told
    assert "profiles and history end with the operator's pod" in told
    with staged(release.plane, namespace, tmp_path, {"gpu-a": 4}) as stage:
        first = release.start_operator(stage)
        # Its only size, so that the policy does not change it.
        stage.submit("long", iterations=LONG, gpus={"options": [2]})
        stage.wait_for_phase("long", "Running")
        before = traces(stage, "long")
        assert len(before["processes"]) >= 2

        policy = {**VIRTUAL, "settings": {**VIRTUAL["settings"], "policy": "max-min"}}
        succeed(release.upgrade(policy, newer_chart(tmp_path)))
        assert "later" in str(release.find(CRD)["spec"])
        image = release.find(DEPLOYMENT)["spec"]["template"]["spec"]["containers"][0]["image"]
        assert image == "dljob-operator:0.2.0"
        # As in a Deployment: the new operator is ready before the former one ends.
        release.start_operator(stage, waits=True)
        first.stop()
        stage.submit("later", iterations=50, gpus={"options": [1]})
        stage.wait_for_phase("later", "Completed")
        stage.wait_for_phase("long", "Running")
        assert traces(stage, "long") == before

        succeed(release.uninstall())
        stage.operators[-1].stop()
        assert not is_there(release, DEPLOYMENT)
        assert is_there(release, CRD)
        assert traces(stage, "long") == before

        succeed(release.install(VIRTUAL))
        release.start_operator(stage)
        stage.submit("after", iterations=50, gpus={"options": [1]})
        stage.wait_for_phase("after", "Completed")
        assert traces(stage, "long") == before
        stage.api.delete(stage.path("long"))
        stage.wait(lambda: stage.is_gone("long"))


def test_uninstall_may_end_all_jobs_in_some_namespaces(
    release: Release, namespace: str, tmp_path: Path
):
    values = {**VIRTUAL, "namespaces": [namespace], "uninstall": {"jobs": "end"}}
    succeed(release.install(values))
    with staged(release.plane, namespace, tmp_path, {"gpu-b": 2}) as stage:
        operator = release.start_operator(stage)
        stage.submit("long", iterations=LONG)
        stage.submit("waits", iterations=LONG, suspend=True)
        stage.wait_for_phase("long", "Running")
        # Now, because its rights go with the release.
        refusals = [line for line in operator.log.read_text().splitlines() if "forbidden" in line]
        assert refusals == []
        with ThreadPoolExecutor() as threads:
            uninstalled = threads.submit(release.uninstall)
            assert release.play_ending() == 0
            succeed(uninstalled.result(500.0))
        assert stage.is_gone("long")
        assert stage.is_gone("waits")
        # The job is gone after its training; its pod is removed a moment later.
        stage.wait(lambda: stage.pods() == [] and stage.kubelets.pids() == {})
    assert not is_there(release, DEPLOYMENT)
    assert is_there(release, CRD)
    ending = "/apis/rbac.authorization.k8s.io/v1/clusterroles/dljob-ending"
    assert not is_there(release, ending), "the right to delete all jobs ends with its use"


def test_second_release_is_refused_and_names_the_first(release: Release):
    succeed(release.install({}))
    for name, namespace in (("dljob", "elsewhere"), ("another", HOME)):
        said = release.install({}, name=name, namespace=namespace)
        assert said.code != 0
        assert (
            "DLJob is in this cluster already, as release dljob in namespace dljob-system"
            in said.err
        )
        assert f"helm upgrade -n {HOME} dljob" in said.err
    assert succeed(release.upgrade({})), "the first one can be upgraded"


def test_missing_secret_is_reported_at_once(release: Release):
    secret = {"name": "theirs"}
    values = {"store": {"type": "mongodb", "mongodb": {"existingSecret": secret}}}
    said = release.install(values)
    assert said.code != 0
    assert "there is no Secret theirs in namespace dljob-system" in said.err
    assert "kubectl create secret generic theirs -n dljob-system --from-literal=url=" in said.err
    assert not is_there(release, DEPLOYMENT)
    kubectl = release.plane.kubectl
    if not is_there(release, f"/api/v1/namespaces/{HOME}"):
        kubectl("create", "namespace", HOME)
    kubectl("create", "secret", "generic", "theirs", "-n", HOME, "--from-literal=address=x")
    said = release.install(values)
    assert "the Secret theirs in namespace dljob-system has no key url; it has: address" in said.err
    kubectl("delete", "secret", "theirs", "-n", HOME)
    optional = {"existingSecret": {**secret, "optional": True}}
    succeed(release.install({"store": {"type": "mongodb", "mongodb": optional}}))


def test_password_of_the_deployed_server_outlives_upgrades(release: Release):
    values = {"store": {"type": "deployed"}, "scheduler": {"enabled": True}}
    path = f"/api/v1/namespaces/{HOME}/secrets/dljob-mongodb"
    succeed(release.install(values))
    password = release.find(path)["data"]["password"]
    succeed(release.upgrade({**values, "replicas": 3}))
    assert release.find(path)["data"]["password"] == password
    succeed(release.uninstall())
    succeed(release.install(values))
    assert release.find(path)["data"]["password"] == password


def test_kubectl_install_is_taken_over_on_request(release: Release):
    kubectl = release.plane.kubectl
    kubectl("apply", "--server-side", "--force-conflicts", "-k", ROOT / "manifests" / "install")
    said = release.install({})
    assert said.code != 0
    assert "cannot be imported into the current release" in said.err
    succeed(release.install({}, "--take-ownership"))
    assert release.find(DEPLOYMENT)["metadata"]["labels"]["app.kubernetes.io/managed-by"] == "Helm"
