"""
The cost of an operator where very many jobs run: its memory, its cycles, its polls, its writes, and a take-over.

A real API server with invented nodes and pods, and the operator as a process of its own. Every job
runs and trains: its status has the record of a former operator, and a played SideCar answers for its
pod over mutual TLS. One operator is measured at rest, with only its periodic decisions;
then it is killed while a second one waits to lead, and that one is timed until it has decided.
"""

import asyncio
import base64
import ctypes
import itertools
import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import click
from _measuring import describe_machine, fit_exponent, print_result, summarize
from _progress import ROOT, CannotRun, attempts, run, say
from _scaled_sidecars import GENERATION, GPUS_A_JOB, JOBS_A_NODE, SPEED, address_of

from dljob.control.situation.status import (
    Booking,
    ConditionType,
    DecisionNumber,
    StartNumber,
    Status,
)
from dljob.core.documents import jobfile
from dljob.core.model import NodeName, Phase, Placement
from dljob.kube import access
from dljob.kube.certificates import Authority, authority_document
from dljob.kube.client import ApiServer
from dljob.kube.names import FINALIZER
from dljob.kube.resources import DLJOBS, SECRETS
from dljob.operator.jobs.entries import status_document
from dljob.operator.podspecs import building
from dljob.operator.podspecs.building import SIDECAR_PORT
from dljob.operator.podspecs.podsettings import PodSettings
from tests.servers.audits import read_events
from tests.servers.binaries import find_all
from tests.servers.controlplane import PROGRAMS, ControlPlane, Wishes
from tests.servers.nodes import SINCE, make_node
from tests.servers.ports import choose_ports
from tests.servers.processes import Guard

HERE = Path(__file__).parent
HOME = "default"
PUTS_AT_ONCE = 64
LIMIT_S = 900.0
CLONE_NEWNET = 0x40000000
LOOK_S = 0.1
SETTLE_S = 20.0
"""After the first look at everything, what comes only once has time to end."""
ITERATIONS = 10**9
WRITES = {
    "omitStages": ["RequestReceived", "ResponseStarted"],
    "rules": [
        {"level": "Metadata", "verbs": ["create", "update", "patch", "delete"]},
        {"level": "None"},
    ],
}
READABLE = "--storage-media-type=application/json"
"""So that nodes and pods, too, can be written into etcd by others than the API server."""

Json = dict[str, Any]


@click.command(help=__doc__)
@click.option(
    "--jobs",
    "sizes",
    type=click.IntRange(JOBS_A_NODE),
    multiple=True,
    help="The number of jobs, on half as many nodes; may be given again, for the growth.",
)
@click.option("--full", is_flag=True, help="1,000 and 10,000 jobs on 500 and 5,000 nodes.")
@click.option("--seconds", type=click.FloatRange(1), default=30.0, show_default=True)
@click.option("-o", "--output", type=click.Choice(["table", "json"]), default="table")
def main(*, sizes: tuple[int, ...], full: bool, seconds: float, output: str) -> None:
    """Measure each size, and how the figures grow from the first to the last."""
    _leave_network()
    chosen = sizes or ((1000, 10_000) if full else (50, 200))
    rows = [_measure_one(jobs, seconds) for jobs in chosen]
    if len(rows) > 1:
        rows.append(_growth(chosen, rows))
    print_result(rows, output)


def _leave_network() -> None:
    """As root, have a network of our own, because other SideCars may listen at the same port."""
    ip = shutil.which("ip")
    if ip and ctypes.CDLL(None).unshare(CLONE_NEWNET) == 0:
        subprocess.run([ip, "link", "set", "lo", "up"], check=True)


def _growth(sizes: Sequence[int], rows: Sequence[Json]) -> Json:
    """With which power of the number of jobs each figure grows."""

    def exponent(name: str, part: str = "") -> float:
        values = [row[name][part] if part else row[name] for row in rows]
        return fit_exponent([float(size) for size in sizes], values) if all(values) else 0.0

    return {
        "growth": f"figure = jobs ** exponent, from {sizes[0]} to {sizes[-1]} jobs",
        "rss_mb": exponent("rss_mb"),
        "quiet_cycle_s": exponent("quiet_cycle_s", "p99"),
        "quiet_core_s": exponent("quiet_core_s", "p99"),
        "deciding_cycle_s": exponent("deciding_cycle_s", "p99"),
        "polls_per_s": exponent("polls_per_s"),
        "cpu_share": exponent("cpu_share"),
        "takeover_s": exponent("takeover_s"),
    }


def _measure_one(jobs: int, seconds: float) -> Json:
    with tempfile.TemporaryDirectory(prefix="dljob-scale-") as folder:
        wishes = Wishes(
            controllers=False, scheduler=None, api_server=[READABLE], audit_policy=WRITES
        )
        programs = find_all(*PROGRAMS)
        with ControlPlane(Path(folder) / "plane", wishes, programs=programs) as plane:
            return asyncio.run(_measure(plane, Path(folder), jobs, seconds))


async def _measure(plane: ControlPlane, folder: Path, jobs: int, seconds: float) -> Json:
    api = ApiServer(access.find(str(plane.admin)))
    try:
        with Guard() as guard:
            began = time.monotonic()
            await _populate(plane, jobs)
            say(f"{jobs} jobs exist after {time.monotonic() - began:.0f} s")
            await _play_sidecars(api, guard, folder)
            first = await Operator.start(guard, plane, folder / "first")
            met_s = await first.wait_for_all(jobs)
            say(f"all SideCars are met after {met_s:.1f} s")
            say("lets it come to rest, and measures")
            await asyncio.sleep(SETTLE_S)
            _insist_that_jobs_are_well(plane)
            before = _count_writes(plane)
            measured = await first.measure(seconds)
            after = _count_writes(plane)
            measured["writes_an_hour"] = {
                kind: round((count - before[kind]) * 3600.0 / seconds)
                for kind, count in after.items()
                if count > before[kind]
            }
            say("measures a take-over …")
            second = await Operator.start(guard, plane, folder / "second")
            await second.wait_for_word("waits to lead")
            taken = await _measure_takeover(first, second, jobs)
            say(second.last_words())
    finally:
        await api.close()
    nodes = jobs // JOBS_A_NODE
    machine = describe_machine()
    return {"jobs": jobs, "nodes": nodes, "met_s": met_s, **measured, **taken, "machine": machine}


def _count_writes(plane: ControlPlane) -> Counter[str]:
    """Return how often each kind of object was written, by all but the API server itself."""
    return Counter(
        "/".join(filter(None, (what.get("resource", ""), what.get("subresource", ""))))
        for event in read_events(plane.audit_log)
        if event["user"]["username"] != "system:apiserver"
        for what in [event.get("objectRef", {})]
    )


def _insist_that_jobs_are_well(plane: ControlPlane) -> None:
    """A job that is set aside costs other things than one that trains."""
    job = json.loads(plane.kubectl("get", "dljob", "job-0", "--namespace", HOME, "-o", "json"))
    for condition in job["status"].get("conditions", ()):
        if condition["type"] == ConditionType.SET_ASIDE and condition["status"] == "True":
            raise click.ClickException(f"job-0 is set aside: {condition['message']}")


async def _measure_takeover(first: "Operator", second: "Operator", jobs: int) -> Json:
    began = time.monotonic()
    first.process.kill()
    await second.wait_for_word("leads, in epoch")
    leads = time.monotonic() - began
    decided = await second.wait_for_decision() - began
    await second.wait_for_all(jobs)
    met = time.monotonic() - began
    return {
        "lease_s": round(leads, 1),
        "takeover_s": round(decided, 1),
        "takeover_met_s": round(met, 1),
        "takeover_rss_mb": second.memory_mb("VmHWM"),
    }


# --- what there is ------------------------------------------------------------------------


async def _populate(plane: ControlPlane, jobs: int) -> None:
    """
    Write all objects into etcd, as the API server would have kept them.

    To create 25,000 of them one by one would take the API server longer than all that is measured.
    """
    plane.kubectl("apply", "--server-side", "-f", str(ROOT / "crds" / "dljobs.dljob.io.yaml"))
    plane.kubectl("wait", "--for=condition=Established", "crd/dljobs.dljob.io", "--timeout=60s")
    # No controller makes it here, and without it the API server refuses all pods.
    plane.kubectl("create", "serviceaccount", "default", "--namespace", HOME)
    pairs = itertools.chain(
        (_node(number) for number in range(jobs // JOBS_A_NODE)),
        itertools.chain.from_iterable(_job_and_pod(number) for number in range(jobs)),
    )
    async with aiohttp.ClientSession() as etcd:
        while batch := list(itertools.islice(pairs, PUTS_AT_ONCE)):
            puts = [
                {"requestPut": {"key": _coded(key), "value": _coded(json.dumps(value))}}
                for key, value in batch
            ]
            url = f"{plane.store_url}/v3/kv/txn"
            async with etcd.post(url, json={"success": puts}) as answer:
                answer.raise_for_status()


def _coded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def _kept(metadata: Json) -> Json:
    """Add the fields that the API server adds when an object is created."""
    return {"uid": str(uuid.uuid4()), "creationTimestamp": SINCE, "generation": 1, **metadata}


def _node(number: int) -> tuple[str, Json]:
    gpus = str(GPUS_A_JOB * JOBS_A_NODE)
    labels = {"dljob.io/pool": "", "dljob.io/gpu-count": gpus, "dljob.io/gpu-type": "A100"}
    taint = {"key": "dljob.io/pool", "effect": "NoSchedule"}
    node = make_node(f"node-{number}", labels=labels, taints=[taint])
    return f"/registry/minions/node-{number}", {**node, "metadata": _kept(node["metadata"])}


def _job_and_pod(number: int) -> Iterator[tuple[str, Json]]:
    """Make a job that runs, with its pod, as an operator of epoch 1 left it."""
    node, name = NodeName(f"node-{number // JOBS_A_NODE}"), f"job-{number}"
    document = _job(name)
    job = jobfile.parse(document)
    first = number % JOBS_A_NODE * GPUS_A_JOB
    booking = Booking(node, 1, DecisionNumber(1))
    now = time.time()
    status = Status(
        phase=Phase.RUNNING,
        generation=DecisionNumber(1),
        placement=Placement.of({node: range(first, first + GPUS_A_JOB)}),
        pods=(booking,),
        used=frozenset({1}),
        booked=1,
        booked_at=now,
        shaped=DecisionNumber(1),
        running=StartNumber(GENERATION),
        containers=1,
        heard=StartNumber(GENERATION),
        iterations_total=float(ITERATIONS),
        speed=SPEED,
        submitted_at=now,
        started_at=now,
        decided_at=now,
        counted_at=now,
    )
    document["status"] = status_document(status, epoch=1, generation=1)
    yield f"/registry/dljob.io/dljobs/{HOME}/{name}", document
    pod = building.make_trainer(document, job, booking=booking, settings=PodSettings())
    pod["metadata"] = _kept(pod["metadata"])
    pod["spec"]["nodeName"] = str(node)
    pod["status"] = _pod_status(address_of(number))
    yield f"/registry/pods/{HOME}/{pod['metadata']['name']}", pod


def _job(name: str) -> Json:
    container = {
        "name": "trainer",
        "image": "registry.invalid/trainer:1",
        "command": ["python", "train.py"],
        "resources": {"requests": {"cpu": "1", "memory": "1Gi"}},
        "env": [{"name": f"SETTING_{number}", "value": "a value"} for number in range(8)],
        "volumeMounts": [{"name": "data", "mountPath": "/data"}],
    }
    volumes = [{"name": "data", "hostPath": {"path": "/data"}}]
    return {
        "apiVersion": DLJOBS.api_version,
        "kind": DLJOBS.kind,
        "metadata": _kept({"name": name, "namespace": HOME, "finalizers": [FINALIZER]}),
        "spec": {
            "gpus": {"options": [GPUS_A_JOB]},
            "training": {"iterations": ITERATIONS},
            "progress": {"log": r"step (?P<iteration>\d+)"},
            "template": {"spec": {"containers": [container], "volumes": volumes}},
        },
    }


def _pod_status(address: str) -> Json:
    running = {"running": {"startedAt": SINCE}}
    return {
        "phase": "Running",
        "podIP": address,
        "podIPs": [{"ip": address}],
        "containerStatuses": [
            {
                "name": "trainer",
                "image": "registry.invalid/trainer:1",
                "imageID": "",
                "ready": True,
                "started": True,
                "restartCount": 0,
                "state": running,
            }
        ],
    }


async def _play_sidecars(api: ApiServer, guard: Guard, folder: Path) -> None:
    """Play the SideCars of all pods, vouched for by the authority that the operator will find."""
    authority = Authority.new()
    await api.create(SECRETS, authority_document(authority, HOME), HOME)
    certificates = folder / "sidecars"
    certificates.mkdir()
    for name, content in authority.vouch_for("*.job.dljob", days=1).items():
        (certificates / name).write_bytes(content)
    log = folder / "sidecars.log"
    script = str(HERE / "_scaled_sidecars.py")
    command = [sys.executable, script, str(certificates), str(SIDECAR_PORT)]
    played = guard.spawn(command, log)

    def do_serve() -> bool:
        if played.poll() is not None:
            told = log.read_text()
            if "address already in use" in told:
                remedy = "root has a network of its own"
                raise CannotRun(f"another program listens at port {SIDECAR_PORT}; {remedy}")
            raise click.ClickException(f"the SideCars are not played: {told}")
        return "serves" in log.read_text()

    await _wait_for(do_serve, "the SideCars are played")


# --- the operator -------------------------------------------------------------------------


class Cycle(NamedTuple):
    at: float
    took: float
    core: float
    """The use of a core, with the work of others meanwhile on the same event loop."""
    is_decided: bool


@dataclass
class Operator:
    """One that runs, and what is seen of it from outside."""

    process: "subprocess.Popen[bytes]"
    port: int
    log: Path
    cycles: Path

    @classmethod
    async def start(cls, guard: Guard, plane: ControlPlane, folder: Path) -> "Operator":
        folder.mkdir()
        [port] = choose_ports(1)
        log, cycles = folder / "log", folder / "cycles"
        cycles.touch()
        settings = {
            "namespace": HOME,
            "health": f"127.0.0.1:{port}",
            "store": str(folder / "profiles.db"),
            "pods.virtualGpus": "true",
        }
        options = [f"--set={name}={value}" for name, value in settings.items()]
        script = str(HERE / "_scaled_operator.py")
        command = [sys.executable, script, str(cycles), f"--kubeconfig={plane.admin}", *options]
        return cls(guard.spawn(command, log), port, log, cycles)

    async def wait_for_word(self, word: str) -> None:
        await self._wait_for(
            lambda: word in self.log.read_text(errors="replace"), f"the operator logs: {word}"
        )

    async def wait_for_all(self, jobs: int) -> float:
        """Wait until every SideCar answers; return how long that took."""
        began = time.monotonic()

        def are_met() -> bool:
            return self._metric('dljob_sidecars{state="answers"}') >= jobs

        await self._wait_for(are_met, "all SideCars are met", every=1.0)
        return round(time.monotonic() - began, 1)

    async def wait_for_decision(self) -> float:
        """Wait until it has decided for the first time, and return when that was."""

        def has_decided() -> bool:
            return any(each.is_decided for each in self._read_cycles())

        await self._wait_for(has_decided, "the operator decides")
        return next(each.at for each in self._read_cycles() if each.is_decided)

    async def measure(self, seconds: float) -> Json:
        since, cpu, polls = time.monotonic(), self._cpu(), self._polls()
        await asyncio.sleep(seconds)
        lasted = time.monotonic() - since
        cycles = [each for each in self._read_cycles() if each.at >= since]
        quiet = [each for each in cycles if not each.is_decided]
        deciding = [each for each in cycles if each.is_decided]
        return {
            "rss_mb": self.memory_mb("VmRSS"),
            "peak_mb": self.memory_mb("VmHWM"),
            "cycles": len(cycles),
            "quiet_cycle_s": summarize([each.took for each in quiet] or [0.0]),
            "quiet_core_s": summarize([each.core for each in quiet] or [0.0]),
            "deciding_cycle_s": summarize([each.took for each in deciding] or [0.0]),
            "deciding_core_s": summarize([each.core for each in deciding] or [0.0]),
            "polls_per_s": round((self._polls() - polls) / lasted, 1),
            "cpu_share": round((self._cpu() - cpu) / lasted, 2),
        }

    def memory_mb(self, what: str) -> float:
        status = Path(f"/proc/{self.process.pid}/status").read_text(encoding="utf-8")
        found = re.search(rf"{what}:\s+(\d+)", status)
        return round(int(found[1]) / 1024, 1) if found else 0.0

    def last_words(self) -> str:
        """Return its log lines that are not about single SideCars."""
        lines = self.log.read_text(errors="replace").splitlines()
        return "\n".join([line for line in lines if "the SideCar of" not in line][-8:])

    async def _wait_for(
        self, is_so: Callable[[], bool], what: str, *, every: float = LOOK_S
    ) -> None:
        def is_so_meanwhile() -> bool:
            if self.process.poll() is not None:
                raise click.ClickException(f"the operator has ended: {self.last_words()}")
            return is_so()

        await _wait_for(is_so_meanwhile, what, every=every)

    def _read_cycles(self) -> list[Cycle]:
        whole, _, _ = self.cycles.read_text().rpartition("\n")
        fields = [line.split() for line in whole.splitlines()]
        return [
            Cycle(float(at), float(took), float(core), is_decided == "1")
            for at, took, core, is_decided in fields
        ]

    def _cpu(self) -> float:
        stat = Path(f"/proc/{self.process.pid}/stat").read_text(encoding="utf-8")
        fields = stat.rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / 100.0

    def _polls(self) -> float:
        return self._metric("dljob_sidecar_polls_total")

    def _metric(self, name: str) -> float:
        try:
            with urllib.request.urlopen(
                f"http://127.0.0.1:{self.port}/metrics", timeout=60.0
            ) as answer:
                text = answer.read().decode()
        except OSError:
            return 0.0
        return next(
            (float(line[len(name) :]) for line in text.splitlines() if line.startswith(name)), 0.0
        )


async def _wait_for(is_so: Callable[[], bool], what: str, *, every: float = LOOK_S) -> None:
    for _ in attempts(what, LIMIT_S):
        if await asyncio.to_thread(is_so):
            return
        await asyncio.sleep(every)


if __name__ == "__main__":
    run(main)
