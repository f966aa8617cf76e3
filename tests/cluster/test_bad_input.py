"""
Secrets that are missing or expired: the job's status names the fault, and no other job is disturbed.

A pod's status tells why a container cannot be made after the kubelet's second attempt; until then the
message says that the pod has not started, and where its kubelet reports more.
"""

import base64
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dljob.kube.certificates import CA_SECRET, Authority
from dljob.kube.names import secret_name, sidecar_name
from tests.chart.helms import HOME
from tests.cluster.jobs import as_text, replay, trainer_of
from tests.cluster.looking import View
from tests.servers.api import Json

pytestmark = pytest.mark.nodes


@pytest.fixture
def undisturbed(view: View, saved: Path) -> Iterator[None]:
    """Another job, which trains undisturbed."""
    view.cluster.give_gpus(node1=3)
    view.kubectl("apply", "-f", "-", stdin=as_text(replay("other", [1], saved)))
    view.wait_progress("other")
    [before] = view.pods("other")
    trainings = view.trainings(before.name)
    yield
    assert [pod.identity for pod in view.pods("other")] == [before.identity]
    assert view.trainings(before.name) == trainings
    view.wait_progress("other")


def condition(view: View, name: str, kind: str) -> Json:
    found = view.job(name).get("status", {}).get("conditions", ())
    return next((each for each in found if each["type"] == kind), {})


def not_initialized(view: View, word: str = "") -> Callable[[], str]:
    """A function that returns why the pods are not up, once the message has this word."""

    def told() -> str:
        found = condition(view, "job", "Initialized")
        message = str(found.get("message", ""))
        is_it = found.get("status") == "False" and word in message
        return f"{found['reason']}: {message}" if is_it else ""

    return told


@pytest.mark.usefixtures("undisturbed")
def test_missing_user_secret_is_named(view: View, saved: Path):
    manifest = replay("job", [1], saved)
    key = {"name": "theirs", "key": "word"}
    trainer_of(manifest)["env"] = [{"name": "WORD", "valueFrom": {"secretKeyRef": key}}]
    view.kubectl("apply", "-f", "-", stdin=as_text(manifest))
    view.wait(not_initialized(view), what="a pod that does not start")
    said = view.wait(not_initialized(view, "theirs"), what="a Secret that is gone")
    assert said.startswith("CreateContainerConfigError")
    view.kubectl("create", "secret", "generic", "theirs", "--from-literal=word=open")
    view.wait_gpus("job", node1=1)


def expired(view: View, name: str) -> Json:
    """The Secret of a job, with an expired certificate of the right authority."""
    document: Json = json.loads(view.kubectl("get", "secret", "-n", HOME, CA_SECRET, "-o", "json"))
    authority = Authority.read(document["data"])
    files = authority.vouch_for(sidecar_name(view.job(name)["metadata"]["uid"]), days=0)
    data = {file: base64.b64encode(content).decode() for file, content in files.items()}
    return {"data": data}


@pytest.mark.usefixtures("undisturbed")
def test_expired_certificate_is_replaced_without_a_restart(view: View, saved: Path):
    view.kubectl("apply", "-f", "-", stdin=as_text(replay("job", [1], saved)))
    view.wait_gpus("job", node1=1)
    [before] = view.pods("job")
    patch = json.dumps(expired(view, "job"))
    view.kubectl("patch", "secret", secret_name("job"), "--type=merge", "-p", patch)
    # The kubelet brings the certificate to the pod; then no client can connect to the SideCar.
    view.wait(lambda: says_expired(view), what="a certificate that is over")
    view.wait(lambda: not says_expired(view), what="another certificate")
    view.wait_gpus("job", node1=1)
    assert [pod.identity for pod in view.pods("job")] == [before.identity]


def says_expired(view: View) -> str:
    """The message about the expired certificate, from any condition."""
    found = view.job("job").get("status", {}).get("conditions", ())
    told = [each["message"] for each in found if "expired" in each.get("message", "")]
    return str(told[0]) if told else ""
