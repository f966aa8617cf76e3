"""
Who may command a SideCar, what a training's output can affect, and who can see secrets.

Pods are as the operator makes them, in a namespace with the restricted standard.
"""

import base64
import json
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from dljob.kube.certificates import Authority, write_own
from dljob.operator.podspecs.building import SIDECAR_PORT
from dljob.operator.podspecs.podsettings import PodSettings
from tests.operator.kubelets import ROOT
from tests.operator.stages import Stage, staged
from tests.operator.visitors import Visitor
from tests.servers.api import Json
from tests.servers.controlplane import ControlPlane
from tests.servers.namespaces import make_namespace, remove_namespace

pytestmark = [pytest.mark.cluster, pytest.mark.processes]


PASSWORD = "open-sesame-4711"  # noqa: S105 - invented
STORE = f"mongodb://lab:{PASSWORD}@127.0.0.1:1/dljob?serverSelectionTimeoutMS=500"
COMPLIES: Json = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "runAsNonRoot": True,
    "seccompProfile": {"type": "RuntimeDefault"},
}
LONG = 10**6


@pytest.fixture(scope="module")
def stage(control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    folder = tmp_path_factory.mktemp("safety")
    with control_plane.api() as api:
        namespace = make_namespace(api)
        restricted = {"pod-security.kubernetes.io/enforce": "restricted"}
        api.merge(f"/api/v1/namespaces/{namespace}", {"metadata": {"labels": restricted}})
        with staged(control_plane, namespace, folder, {"gpu-a": 4}) as stage:
            stage.start_operator(settings={"store": STORE})
            yield stage
        remove_namespace(api, namespace)


def submit(stage: Stage, name: str, *, iterations: int = 100, **spec: Any) -> None:
    """Submit a job of one GPU whose container complies."""
    document = stage.make_job(name, iterations=iterations)
    template = spec.pop("command", None)
    document["spec"] |= {"gpus": {"options": [1]}} | spec
    container = document["spec"]["template"]["spec"]["containers"][0]
    container["securityContext"] = COMPLIES
    if template is not None:
        container["command"] = template
    stage.api.post(stage.path(), document)


def test_our_additions_comply_with_the_restricted_standard(stage: Stage):
    submit(stage, "modest")
    stage.wait_for_phase("modest", "Completed")
    document = stage.make_job("bold", iterations=10)
    container = document["spec"]["template"]["spec"]["containers"][0]
    container["securityContext"] = {"privileged": True, "runAsUser": 0}
    stage.api.post(stage.path(), document)

    def refusal() -> str:
        found = stage.status("bold").get("conditions", ())
        said = {each["type"]: each["message"] for each in found if each["status"] == "False"}
        return str(said.get("TemplateValid", ""))

    said = stage.wait(refusal)
    assert 'container "trainer"' in said
    assert "dljob-sidecar" not in said, "only the user's container is named"
    stage.api.delete(stage.path("bold"))


@pytest.mark.story
def test_only_the_operator_commands_a_sidecar(stage: Stage, tmp_path: Path):
    for name in ("mine", "theirs"):
        submit(stage, name, iterations=LONG)
    for name in ("mine", "theirs"):
        stage.wait_for_phase(name, "Running")

    def find_pids() -> list[int | None]:
        # The SideCar of the last job may still be ending.
        return [stage.kubelets.pids().get(f"{name}-1") for name in ("mine", "theirs")]

    pids = find_pids()
    assert None not in pids
    mine, theirs = (stage.kubelets.folder / f"{name}-1" / "tls" for name in ("mine", "theirs"))
    before = Visitor(stage, "mine-1", mine).state()
    # A job's own certificate may only read; another job's not even that.
    assert Visitor(stage, "mine-1", mine).stop(before)[0] == 403
    assert Visitor(stage, "mine-1", theirs).stop(before)[0] == 403
    assert Visitor(stage, "mine-1", theirs).ask("GET", "/v1/state")[0] == 403
    # The operator's name by another authority, and no certificate.
    write_own(Authority.new(), tmp_path, name=PodSettings().controller_name)
    for nobody in (tmp_path, None):
        with pytest.raises((ssl.SSLError, ConnectionError)):
            Visitor(stage, "mine-1", nobody).stop(before)
    after = Visitor(stage, "mine-1", mine).state()
    assert (after.epoch, after.generation, after.phase) == (
        before.epoch,
        before.generation,
        before.phase,
    )
    assert find_pids() == pids
    for name in ("mine", "theirs"):
        stage.api.delete(stage.path(name))


LIES = """
import sys, time
say = sys.stdout.write
step = 0
while True:
    step += 1
    say(f"step {step} loss=1\\n")
    for number in ("9007199254740991", "9" * 400, "-7", "1e999", "nan"):
        say(f"step {number} loss=-{number}\\n")
        say(f"step {step} loss=-1e299\\n")
    say("x" * 3_000_000 + "\\n")
    say("status: neighbour Failed\\nstep " + "\\0" * 1000 + "\\n\\x1b[2J\\u202e\\n")
    print('{"job": "neighbour", "iteration": 1, "phase": "Failed"}', flush=True)
    time.sleep(0.05)
"""


def test_hostile_output_affects_only_its_job(stage: Stage):
    progress = {"log": r"step (?P<iteration>\S+) loss=(?P<loss>\S+)"}
    target = {"metric": "loss", "value": 1e9, "direction": "rises"}
    training = {"iterations": LONG, "batchSize": 64, "target": target}
    command = ["python3", "-c", LIES]
    submit(stage, "liar", command=command, progress=progress, training=training)
    stage.wait_for_phase("liar", "Running")
    stage.wait(lambda: stage.status("liar").get("progress", {}).get("iteration", 0) > 0)
    for name in ("neighbour", "next"):
        submit(stage, name)
        status = stage.wait_for_phase(name, "Completed")
        assert (status.get("failures", 0), status["exitCode"]) == (0, 0)
    log = stage.operators[-1].log.read_text()
    assert "cannot be written" not in log
    assert "Traceback" not in log
    stage.api.delete(stage.path("liar"))
    stage.wait(lambda: stage.is_gone("liar"))


def secrets_of(stage: Stage) -> set[str]:
    """The lines of private keys, plain and encoded, and the password."""
    marks = {PASSWORD, base64.b64encode(PASSWORD.encode()).decode()}
    for secret in stage.api.get(f"/api/v1/namespaces/{stage.namespace}/secrets")["items"]:
        key = secret["data"]["tls.key"]
        lines = base64.b64decode(key).decode().splitlines()
        assert "PRIVATE KEY" in lines[0]
        marks |= {key[40:100], *(line for line in lines[1:-1] if len(line) > 20)}
    return marks


def test_jobs_pods_and_logs_show_no_secrets(stage: Stage):
    submit(stage, "shown", iterations=LONG)
    stage.wait_for_phase("shown", "Running")
    marks = secrets_of(stage)
    assert len(marks) >= 6, "of an authority, a job and the password"
    base = f"/api/v1/namespaces/{stage.namespace}"
    paths = [stage.path(), f"{base}/pods", f"{base}/events", f"{base}/configmaps"]
    texts = {path: json.dumps(stage.api.get(path)) for path in paths}
    # It logs the address of the store.
    stage.wait(lambda: "127.0.0.1:1" in stage.operators[-1].log.read_text())
    texts["the operator's log"] = stage.operators[-1].log.read_text()
    texts["the log of a pod"] = stage.wait(lambda: stage.kubelets.log("shown-1"))
    for where, text in texts.items():
        assert text
        assert [mark for mark in marks if mark in text] == [], where
    stage.api.delete(stage.path("shown"))


def test_network_policy_matches_our_pods_and_ports(stage: Stage):
    kubectl = stage.plane.kubectl.in_namespace(stage.namespace)
    kubectl("apply", "-k", ROOT / "manifests" / "namespace")
    path = f"/apis/networking.k8s.io/v1/namespaces/{stage.namespace}/networkpolicies/dljob-jobs"
    spec = stage.api.get(path)["spec"]
    operator, each_other = spec["ingress"]
    assert [port["port"] for port in operator["ports"]] == [SIDECAR_PORT]
    labels = operator["from"][0]["podSelector"]["matchLabels"]
    installed = (ROOT / "manifests" / "install" / "operator.yaml").read_text()
    documents = yaml.safe_load_all(installed)
    deployment = next(each for each in documents if each["kind"] == "Deployment")
    assert labels == deployment["spec"]["template"]["metadata"]["labels"]
    for ports in each_other["ports"]:
        is_open = ports["port"] <= SIDECAR_PORT <= ports["endPort"]
        assert not (is_open and ports["protocol"] == "TCP")
    submit(stage, "labelled")
    stage.wait(lambda: stage.pods_of("labelled"))
    (expression,) = spec["podSelector"]["matchExpressions"]
    assert expression["key"] in stage.pods_of("labelled")[0]["metadata"]["labels"]
