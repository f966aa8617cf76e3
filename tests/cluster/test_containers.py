"""Real containers that are killed, out of memory, evicted or without an image, and the messages for users."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster.jobs import as_text, replay, trainer_of
from tests.cluster.looking import Pod, View
from tests.sidecar.drivers import find_processes, read_proc

pytestmark = pytest.mark.nodes

HUNGRY = "import sys, time; print('step 1', flush=True); x = bytearray(1 << 30); time.sleep(600)"


def start(view: View, saved: Path, name: str = "job", gpus: int = 1, **spec: object) -> Pod:
    """Submit a job; return its pod when it trains."""
    manifest = replay(name, [gpus], saved, **spec)  # type: ignore[arg-type]
    view.kubectl("apply", "-f", "-", stdin=as_text(manifest))
    view.wait_progress(name)
    [pod] = view.pods(name)
    return pod


def counts(view: View, name: str) -> tuple[int, int]:
    """The failures of a job, and its restarts for other reasons."""
    status = view.job(name)["status"]
    return status.get("failures", 0), status.get("restarts", 0)


def kill_sidecar(view: View, name: str) -> None:
    """Kill process 1 of a job's container, like the kernel or an administrator of the node."""
    words = f"--job-uid={view.job(name)['metadata']['uid']}"
    [pid] = [pid for pid in find_processes(words) if _is_first(pid)]
    os.kill(pid, signal.SIGKILL)


def _is_first(pid: int) -> bool:
    """Whether a process is the first one of its PID namespace."""
    lines = read_proc(pid, "status").splitlines()
    return any(line.startswith(b"NSpid:") and line.split()[-1] == b"1" for line in lines)


def test_exec_has_the_gpus_and_the_input(view: View, saved: Path):
    view.cluster.give_gpus(node1=2)
    start(view, saved, gpus=2)
    script = "cat; echo $CUDA_VISIBLE_DEVICES; exit 7"
    command = [sys.executable, "-c", "from dljob.cli.main import main; main()", "exec", "job"]
    ran = subprocess.run(
        [*command, "--namespace", view.namespace, "--", "sh", "-c", script],
        input="typed\n",
        env=view.kubectl.environment({"PYTHONPATH": os.pathsep.join(sys.path)}),
        capture_output=True,
        text=True,
        check=False,
        timeout=600.0,
    )
    assert (ran.returncode, ran.stdout) == (7, "typed\n0,1\n"), ran.stderr


def test_killed_sidecar_resumes_from_the_checkpoint(view: View, saved: Path):
    view.cluster.give_gpus(node1=1)
    before = start(view, saved)
    reached = view.save("job", saved)
    kill_sidecar(view, "job")
    after = view.wait(
        lambda: pod if (pod := view.pods("job")[0]).restarts > before.restarts else None,
        what="another start of the container",
    )
    assert (after.uid, after.name) == (before.uid, before.name), "the pod is the same"
    assert "ended with exit code 137" in view.wait_event("job", "Restarted")
    view.wait_gpus("job", node1=1)
    # The trial of its checkpoint may have saved it once more.
    assert reached < view.first_step(after.name) <= view.kept_iteration("job", saved) + 1
    assert counts(view, "job") == (0, 1)


def test_out_of_memory_is_reported_with_the_remedy(view: View, saved: Path):
    view.cluster.give_gpus(node1=1)
    manifest = replay("job", [1], saved, backoffLimit=0)
    container = trainer_of(manifest)
    container["command"] = ["python", "-c", HUNGRY]
    container["resources"] = {"limits": {"memory": "200Mi"}}
    view.kubectl("apply", "-f", "-", stdin=as_text(manifest))
    view.wait_phase("job", "Failed")
    described = view.kubectl("describe", "dljob", "job")
    assert "memory" in described, described


def test_evicted_pod_saves_and_is_replaced(view: View, saved: Path):
    view.cluster.give_gpus(node1=1)
    before = start(view, saved)
    # A later trial of its checkpoint could save it in the new pod.
    view.wait_event("job", "CheckpointConfirmed")
    eviction = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": before.name, "namespace": view.namespace},
    }
    reached = view.iteration("job")
    path = f"/api/v1/namespaces/{view.namespace}/pods/{before.name}/eviction"
    with view.cluster.plane.api() as api:
        api.post(path, eviction)
    view.wait_event("job", "Drained")
    view.wait(
        lambda: [pod.uid for pod in view.pods("job")] not in ([], [before.uid]), what="a new pod"
    )
    kept = view.kept_iteration("job", saved)
    assert kept >= reached
    view.wait_gpus("job", node1=1)
    [after] = [pod for pod in view.pods("job") if pod.uid != before.uid]
    assert view.first_step(after.name) == kept + 1
    assert counts(view, "job") == (0, 1)


def test_missing_image_is_reported_and_disturbs_no_other_job(view: View, saved: Path):
    view.cluster.give_gpus(node1=2)
    start(view, saved, "other")
    before = view.pods("other")
    manifest = replay("job", [1], saved)
    trainer_of(manifest).update(image="localhost/no-such-image:1", imagePullPolicy="IfNotPresent")
    view.kubectl("apply", "-f", "-", stdin=as_text(manifest))

    def told() -> str:
        found = view.job("job").get("status", {}).get("conditions", ())
        said = [each for each in found if each["type"] == "Initialized"]
        return next((each["reason"] for each in said if "no-such-image" in each["message"]), "")

    assert view.wait(told, what="the reason") == "ImagePullBackOff"
    assert "no-such-image" in view.kubectl("describe", "dljob", "job")
    assert [pod.identity for pod in view.pods("other")] == [pod.identity for pod in before]


def test_logs_and_exit_codes_are_in_the_usual_places(view: View, saved: Path):
    view.cluster.give_gpus(node1=1)
    manifest = replay("job", [1], saved, iterations=60, faster=8.0, backoffLimit=0)
    view.kubectl("apply", "-f", "-", stdin=as_text(manifest))
    view.wait_phase("job", "Completed")
    [pod] = view.pods("job")
    assert "step 60" in view.kubectl("logs", pod.name, "-c", "trainer")
    words = ("wait", f"pod/{pod.name}", "--for=jsonpath={.status.phase}=Succeeded")
    view.kubectl(*words, "--timeout=240s")
    shown = json.loads(view.kubectl("get", "pod", pod.name, "-o", "json"))["status"]
    [ended] = [each["state"]["terminated"] for each in shown["containerStatuses"]]
    assert ended["exitCode"] == 0
    assert "Completed" in view.kubectl("describe", "dljob", "job")


# Runs in one job's container, and asks another job's SideCar with the certificate there.
KNOCK = """
import json, ssl, sys, urllib.request
context = ssl.create_default_context(cafile="/dljob-tls/ca.crt")
context.check_hostname = False
if sys.argv[2] == "shown":
    context.load_cert_chain("/dljob-tls/tls.crt", "/dljob-tls/tls.key")
request = urllib.request.Request(f"https://{sys.argv[1]}:8470/v1/state")
try:
    print(urllib.request.urlopen(request, context=context, timeout=240).status)
except urllib.error.HTTPError as error:
    print(error.code)
except OSError as error:
    print(type(error).__name__, error)
"""


def test_sidecar_answers_only_its_own_job(view: View, saved: Path):
    """Mutual TLS over the pod network, with the pods' own certificates."""
    view.cluster.give_gpus(node1=1, node2=1)
    addresses = {}
    for name in ("one", "other"):
        pod = start(view, saved, name)
        document = json.loads(view.kubectl("get", "pod", pod.name, "-o", "json"))
        addresses[name] = (pod.name, document["status"]["podIP"])

    def knock(from_job: str, at_job: str, manner: str) -> str:
        words = ("exec", addresses[from_job][0], "-c", "trainer", "--", "python3", "-c", KNOCK)
        return view.kubectl(*words, addresses[at_job][1], manner).strip()

    assert knock("one", "one", "shown") == "200"
    assert knock("other", "one", "shown") in {"401", "403"}
    assert "200" not in knock("other", "one", "hidden")
    assert addresses["one"][1].rpartition(".")[0] != addresses["other"][1].rpartition(".")[0]
