"""
How fast jobs are admitted on Kubernetes: from ``kubectl apply`` to a node for each pod.

A real API server and a real kube-scheduler without its own limits, nodes that are made, and the
operator as its own service account. Many jobs of one pod are submitted at once; a job is admitted when
its pod is bound. In the same run the very same pods are bound by the kube-scheduler alone, which is
the yardstick. While they are admitted, a job is submitted that fits nowhere, and it is timed until its
status says why it cannot be scheduled. The API server's audit log counts the writes.

With ``--queued`` the jobs are in a queue of a real Kueue, which has quota for all: each waits for its layer to be admitted.
"""

import asyncio
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import click
from _measuring import describe_machine, print_result
from _progress import ROOT, attempts, run, say

from dljob.control.situation.status import Booking
from dljob.core.documents import jobfile
from dljob.core.model import NodeName
from dljob.kube import access
from dljob.kube.client import ApiServer, Rejected
from dljob.kube.names import FINALIZER
from dljob.kube.resources import DLJOBS, NODES, PODS
from dljob.operator.podspecs import building
from dljob.operator.podspecs.podsettings import PodSettings
from tests.chart.helms import CHART
from tests.operator.queues import QUEUE_LABEL, A, make_teams, queues_of
from tests.servers.binaries import HELM, KUEUE, find_all
from tests.servers.controlplane import PROGRAMS, UNTHROTTLED, ControlPlane, Wishes
from tests.servers.nodes import make_node
from tests.servers.processes import Guard, Server
from tests.servers.queueing import Kueue

HOME = "dljob-system"
ACCOUNT = f"system:serviceaccount:{HOME}:dljob-operator"
SCHEDULER = "system:kube-scheduler"
AUDIT = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived", "ResponseStarted"],
    "rules": [
        {"level": "Metadata", "users": [ACCOUNT]},
        {
            "level": "Metadata",
            "users": [SCHEDULER],
            "resources": [{"group": "", "resources": ["pods/binding"]}],
        },
        {"level": "None"},
    ],
}
CREATED = 201
NAMESPACE = "default"
POOL = "dljob.io/pool"
"""The label and the taint of its nodes."""
GPUS_A_NODE = 8
AT_ONCE = 32
LIMIT_S = 900.0
"""Of a wait: 4,000 jobs take minutes on a slow machine."""
LOOK_S = 0.1
WRITES = frozenset({"create", "patch", "update", "delete"})

Json = dict[str, Any]


class _Bindings:
    """Counts the pods that were ever bound, by the audit log: requests would keep the API server busy."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._read = 0
        self._count = 0

    def count(self) -> int:
        with self._log.open("rb") as log:
            log.seek(self._read)
            whole, newline, _ = log.read().rpartition(b"\n")
        self._read += len(whole) + len(newline)
        events = (json.loads(line) for line in whole.splitlines() if b'"binding"' in line)
        self._count += sum(map(_is_binding, events))
        return self._count

    async def wait_for(self, count: int) -> None:
        async def are_bound() -> bool:
            return self.count() >= count

        await _wait_until(are_bound, f"{count} pods are bound", every=LOOK_S)


def _is_binding(event: Json) -> bool:
    is_it = event.get("objectRef", {}).get("subresource") == "binding"
    return bool(is_it and event.get("responseStatus", {}).get("code") == CREATED)


@click.command()
@click.option("--jobs", type=click.IntRange(1), default=400, show_default=True)
@click.option("--nodes", type=click.IntRange(1), default=50, show_default=True)
@click.option("--full", is_flag=True, help="4,000 jobs on 500 nodes.")
@click.option("--queued", is_flag=True, help="The jobs are in a queue of Kueue.")
@click.option("-o", "--output", type=click.Choice(["table", "json"]), default="table")
def main(*, jobs: int, nodes: int, full: bool, queued: bool, output: str) -> None:
    """Measure how fast jobs are admitted, compared with kube-scheduler alone."""
    if full:
        jobs, nodes = 4000, 500
    with tempfile.TemporaryDirectory(prefix="dljob-admission-") as folder:
        wishes = Wishes(audit_policy=AUDIT, scheduler=UNTHROTTLED)
        programs = find_all(*PROGRAMS, *((KUEUE, HELM) if queued else ()))
        with ExitStack() as stack:
            plane = ControlPlane(Path(folder) / "plane", wishes, programs=programs)
            stack.enter_context(plane)
            rights = ""
            if queued:
                stack.enter_context(Kueue(plane, Path(folder) / "kueue"))
                api = stack.enter_context(plane.api())
                make_teams(api, nodes * GPUS_A_NODE, labels={POOL: ""})
                stack.enter_context(queues_of(api, NAMESPACE))
                rights = _find_rights(programs["helm"])
            result = asyncio.run(_measure(plane, Path(folder), jobs, nodes, rights=rights))
    sizes = {"jobs": jobs, "nodes": nodes, "queued": queued}
    print_result({**sizes, **result, **describe_machine()}, output)


def _find_rights(helm: Path) -> str:
    """Return the rights of the operator that the chart grants with the module for Kueue."""
    wanted = ("--set=settings.kueue.enabled=true", "--show-only=templates/rbac.yaml")
    command = (helm, "template", "dljob", CHART, f"--namespace={HOME}", *wanted)
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


async def _measure(
    plane: ControlPlane, folder: Path, jobs: int, nodes: int, *, rights: str
) -> Json:
    """``rights`` are those with which jobs are in a queue; empty: they are in none."""
    api = ApiServer(access.find(str(plane.admin)), connections=AT_ONCE)
    try:
        for part in ("install", "holding"):
            plane.kubectl("apply", "--server-side", "-k", str(ROOT / "manifests" / part))
        if rights:
            plane.kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", stdin=rights)
        await _wait_until(lambda: _takes_jobs(api), "jobs are taken as DLJob's manifests have it")
        # The pods that are bound without us tolerate the pool's taint, too.
        plane.kubectl("label", "namespace", NAMESPACE, "dljob.io/pool-access=allowed")
        await _all(api.create(NODES, _node(number)) for number in range(nodes))
        await _wait_until(
            lambda: _are_open(api), "the controller-manager takes the nodes for ready", every=1.0
        )
        alone = await _measure_alone(plane, api, jobs)
        with Guard() as guard:
            operator = _start_operator(plane, guard, folder, queued=bool(rights))
            admitted = await _measure_ours(plane, api, jobs, operator, queued=bool(rights))
            say(operator.last_words()[-600:])
        return {
            **admitted,
            **alone,
            "ratio": round(admitted["jobs_per_s"] / alone["alone_per_s"], 3),
        }
    finally:
        await api.close()


async def _measure_alone(plane: ControlPlane, api: ApiServer, count: int) -> Json:
    """Let the kube-scheduler bind the pods that we would make, and take them away again."""
    say(f"{count} pods by kube-scheduler alone …")
    pods = [_pod(number) for number in range(count)]
    bindings = _Bindings(plane.audit_log)
    before, began = bindings.count(), time.monotonic()
    await _all(api.create(PODS, pod, NAMESPACE) for pod in pods)
    await bindings.wait_for(before + count)
    seconds = time.monotonic() - began
    await _all(
        api.delete(PODS, pod["metadata"]["name"], NAMESPACE, grace_seconds=0) for pod in pods
    )
    return {"alone_per_s": round(count / seconds, 1)}


async def _measure_ours(
    plane: ControlPlane, api: ApiServer, count: int, operator: Server, *, queued: bool
) -> Json:
    say(f"{count} jobs by the operator …")
    bindings = _Bindings(plane.audit_log)
    before, began = bindings.count(), time.monotonic()
    peak, server = _Peak(operator.pid), _Peak(plane.api_server.pid)
    serving = asyncio.create_task(server.watch())
    watching = asyncio.create_task(peak.watch())
    submitting = asyncio.create_task(
        _all(
            api.create(DLJOBS, _job(f"job-{number}", queued=queued), NAMESPACE)
            for number in range(count)
        )
    )
    nowhere = _job("nowhere", queued=queued)
    because = asyncio.create_task(_measure_because(api, bindings, before + count // 4, nowhere))
    await submitting
    submitted = time.monotonic() - began
    await bindings.wait_for(before + count)
    seconds = time.monotonic() - began
    watching.cancel()
    serving.cancel()
    writes, dry_runs = _count_writes(plane.audit_log)
    return {
        "jobs_per_s": round(count / seconds, 1),
        "submitted_per_s": round(count / submitted, 1),
        "writes_per_job": round(sum(writes.values()) / count, 2),
        "dry_runs_per_job": round(dry_runs / count, 2),
        "operator_rss_mb": round(peak.rss_mb, 1),
        "operator_cpu_s": round(peak.cpu_s, 1),
        "api_server_cpu_s": round(server.cpu_s, 1),
        "because_s": round(await because, 2),
        "writes": dict(writes.most_common()),
    }


async def _measure_because(api: ApiServer, bindings: _Bindings, at: int, job: Json) -> float:
    """Submit a job that fits nowhere in the middle of the load, and time until its status says why."""
    await bindings.wait_for(at)
    job["spec"]["gpus"] = {"options": [GPUS_A_NODE + 1], "maxNodes": 1}
    began = time.monotonic()
    await api.create(DLJOBS, job, NAMESPACE)

    async def is_told() -> bool:
        status = (await api.get(DLJOBS, "nowhere", NAMESPACE)).get("status", {})
        return any(
            each["type"] == "Scheduled" and each["status"] == "False"
            for each in status.get("conditions", ())
        )

    await _wait_until(is_told, "the status says why the job that fits nowhere waits", every=0.1)
    return time.monotonic() - began


# --- what is made -------------------------------------------------------------------------


def _job(name: str, *, queued: bool = False) -> Json:
    labels = {QUEUE_LABEL: A} if queued else {}
    return {
        "apiVersion": DLJOBS.api_version,
        "kind": DLJOBS.kind,
        "metadata": {"name": name, "labels": labels},
        "spec": {
            "gpus": {"options": [1]},
            "training": {"iterations": 1000},
            "progress": {"log": r"step (?P<iteration>\d+)"},
            "template": {
                "spec": {
                    "containers": [
                        {"name": "trainer", "image": "training:1", "command": ["python", "t.py"]}
                    ]
                }
            },
        },
    }


def _pod(number: int) -> Json:
    """The pod that the operator would make of this job, free to go where the scheduler likes."""
    document = _job(f"alone-{number}")
    document["metadata"] |= {"namespace": NAMESPACE, "uid": "none"}
    job = jobfile.parse(document, require_template=True)
    booking = Booking(NodeName("any"), 1)
    pod = building.make_trainer(document, job, booking=booking, settings=PodSettings())
    for kept in ("ownerReferences", "finalizers"):
        del pod["metadata"][kept]
    here = {
        "key": "metadata.name",
        "operator": "In",
        "values": [f"node-{number // GPUS_A_NODE:04}"],
    }
    terms = pod["spec"]["affinity"]["nodeAffinity"][
        "requiredDuringSchedulingIgnoredDuringExecution"
    ]["nodeSelectorTerms"]
    terms[0]["matchFields"] = [here]
    return pod


def _node(number: int) -> Json:
    labels = {POOL: "", "dljob.io/gpu-count": str(GPUS_A_NODE)}
    taint = {"key": POOL, "effect": "NoSchedule"}
    return make_node(f"node-{number:04}", labels=labels, taints=[taint])


def _start_operator(plane: ControlPlane, guard: Guard, folder: Path, *, queued: bool) -> Server:
    log = folder / "operator.log"
    settings = {
        "namespace": HOME,
        "store": folder / "profiles.db",
        "health": "127.0.0.1:0",
        "pods.virtualGpus": "true",
        "kueue.enabled": str(queued).lower(),
        # There is no kubelet, so that no pod will ever come up.
        "rules.initializeSeconds": 100_000,
    }
    paths = os.pathsep.join(str(ROOT / part) for part in ("operator", "sidecar"))
    operator = Server(
        [
            # It is killed in the end, and then leaves its temporary files behind.
            *("/usr/bin/env", f"TMPDIR={folder}", f"PYTHONPATH={paths}"),
            *(sys.executable, "-m", "dljob.operator"),
            f"--kubeconfig={plane.kubeconfig_for_service_account(HOME, 'dljob-operator')}",
            *(f"--set={path}={value}" for path, value in settings.items()),
        ],
        guard=guard,
        log=log,
        is_ready=lambda: log.exists() and "leads, in epoch" in log.read_text(),
    )
    operator.start()
    return operator


# --- what is seen -------------------------------------------------------------------------


class _Peak:
    """The most memory that a process had, and the processor time that it took."""

    def __init__(self, pid: int) -> None:
        self._folder = Path(f"/proc/{pid}")
        self._before = self._cpu()
        self.rss_mb = 0.0
        self.cpu_s = 0.0

    async def watch(self) -> None:
        while True:
            status = (self._folder / "status").read_text()
            found = re.search(r"VmHWM:\s+(\d+)", status)
            self.rss_mb = int(found[1]) / 1024 if found else self.rss_mb
            self.cpu_s = self._cpu() - self._before
            await asyncio.sleep(0.5)

    def _cpu(self) -> float:
        fields = (self._folder / "stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def _wait_until(
    is_so: Callable[[], Awaitable[bool]], what: str, *, every: float = 0.25
) -> None:
    for _ in attempts(what, LIMIT_S):
        if await is_so():
            return
        await asyncio.sleep(every)


async def _are_open(api: ApiServer) -> bool:
    """Return whether no node has a taint but that of the pool, which each keeps."""
    nodes = await api.list(NODES)
    return not any(
        taint["key"] != POOL for node in nodes.items for taint in node["spec"].get("taints", ())
    )


async def _takes_jobs(api: ApiServer) -> bool:
    """Return whether the custom resource is served, and new jobs are held already."""
    try:
        made = await api.create(DLJOBS, _job("first"), NAMESPACE, dry_run=True)
    except Rejected:
        return False
    return FINALIZER in made["metadata"].get("finalizers", ())


def _count_writes(log: Path) -> tuple[Counter[str], int]:
    """Count the operator's writes, those for its Lease left out, and its dry runs."""
    writes: Counter[str] = Counter()
    dry_runs = 0
    for line in log.read_text().splitlines():
        event = json.loads(line)
        reference = event.get("objectRef", {})
        if event["user"]["username"] != ACCOUNT:
            continue
        if event["verb"] not in WRITES or reference.get("resource") == "leases":
            continue
        if "dryRun" in event["requestURI"]:
            dry_runs += 1
            continue
        what = "/".join(filter(None, (reference["resource"], reference.get("subresource"))))
        writes[f"{event['verb']} {what}"] += 1
    return writes, dry_runs


async def _all(acts: Iterable[Awaitable[Any]]) -> None:
    """Do all of these, ``AT_ONCE`` at a time."""
    turns = asyncio.Semaphore(AT_ONCE)

    async def act(one: Awaitable[Any]) -> None:
        async with turns:
            await one

    await asyncio.gather(*(act(one) for one in acts))


if __name__ == "__main__":
    run(main)
