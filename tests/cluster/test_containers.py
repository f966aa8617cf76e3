"""
The fates of real containers, and the messages for their users: killed, out of memory, evicted,
drained, without an image; and the output of ``kubectl logs``, ``describe`` and ``exec`` about them.
"""

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
    """Submit a job, and return its pod when it trains."""
    manifest = replay(name, [gpus], saved, **spec)  # type: ignore[arg-type]
    view.kubectl("apply", "-f", "-", stdin=as_text(manifest))
    view.wait_progress(name)
    [pod] = view.pods(name)
    return pod


def counts(view: View, name: str) -> tuple[int, int]:
    """
    Return how often a job failed, and how often it restarted for a reason that was not its own.
    """
    status = view.job(name)["status"]
    return status.get("failures", 0), status.get("restarts", 0)


def kill_sidecar(view: View, name: str) -> None:
    """Kill process 1 of the container of a job, as the kernel or an administrator of the node might."""
    uid = view.job(name)["metadata"]["uid"]
    words = f"--job-uid={uid}"
    [pid] = [pid for pid in find_processes(words) if _is_first(pid)]
    os.kill(pid, signal.SIGKILL)


def _is_first(pid: int) -> bool:
    """Whether a process is the first of its own namespace of processes."""
    lines = read_proc(pid, "status").splitlines()
    return any(line.startswith(b"NSpid:") and line.split()[-1] == b"1" for line in lines)


def test_a_command_of_dljob_runs_with_the_gpus_of_a_job_and_gets_its_input(view: View, saved: Path):
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


def test_a_container_whose_sidecar_is_killed_begins_anew_where_it_had_saved_itself(
    view: View, saved: Path
):
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
    # The trial of its checkpoint may have saved it once more, before the kill or after the restart.
    assert reached < view.first_step(after.name) <= view.kept_iteration("job", saved) + 1
    assert counts(view, "job") == (0, 1)


def test_a_training_that_runs_out_of_memory_is_told_the_remedy(view: View, saved: Path):
    view.cluster.give_gpus(node1=1)
    manifest = replay("job", [1], saved, backoffLimit=0)
    container = trainer_of(manifest)
    container["command"] = ["python", "-c", HUNGRY]
    container["resources"] = {"limits": {"memory": "200Mi"}}
    view.kubectl("apply", "-f", "-", stdin=as_text(manifest))
    view.wait_phase("job", "Failed")
    described = view.kubectl("describe", "dljob", "job")
    assert "memory" in described, described


def test_a_pod_that_is_evicted_saves_itself_and_is_made_anew(view: View, saved: Path):
    view.cluster.give_gpus(node1=1)
    before = start(view, saved)
    # Else the trial of its checkpoint could save it once more in the new pod.
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


def test_an_image_that_does_not_exist_is_told_and_disturbs_nobody(view: View, saved: Path):
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


def test_logs_and_exit_codes_are_where_a_user_looks_for_them(view: View, saved: Path):
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


# Runs in the container of one job, and asks the SideCar of another one with the certificate at hand.
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


def test_a_sidecar_answers_its_own_job_alone(view: View, saved: Path):
    """Mutual TLS between pods: over the network of the pods, with the certificates that they have."""
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
