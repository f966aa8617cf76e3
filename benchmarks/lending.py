"""
How long a team waits for its own GPUs that another team has borrowed: DLJob with Kueue, and Kueue alone.

Two real kubelets, a real Kueue, and the operator from its own image. Two teams own half of the GPUs each, which are virtual.
Team a trains on all of them; then team b submits jobs for its half. The time is from that submission to the first step of the last
job of team b. In ``live`` and ``warm`` all jobs are DLJobs: those of team a shrink by a live change, or are restarted by
the SideCar from an interpreter that waits. In ``jobs`` all are Jobs of Kubernetes: Kueue evicts those of team a, and admits them
again with the GPUs that are left (partial admission). The program is the same, and saves where it is asked to end. It imports
numpy and nothing of a framework, and images are on the nodes already. The pause of team a is the longest of its jobs, from step to
step, or until the end of 20 s for one that does not go on. A pod ends when its job leaves a node, and where Kueue evicts a Job.

The ways take turns. In the scene ``one`` team a has one job on 4 GPUs; in ``several`` it has four jobs on 8 GPUs, and team b
submits two, as in issue 1934 of the KAI scheduler. It needs root, and installs the Debian packages of a node where they are missing.
"""

import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import click
from _measuring import describe_machine, print_result
from _progress import ROOT, CannotRun, run, say, wait_until

from tests.cluster.clusters import POOL_LABEL, Cluster, install, opened, values
from tests.operator.queues import QUEUE_LABEL, A, B, is_true, make_teams, queues_of
from tests.servers.api import Api
from tests.servers.binaries import Unavailable
from tests.servers.images import TRAINER
from tests.servers.namespaces import make_namespace
from tests.servers.queueing import KUEUE_API, Kueue, find_module

Json = dict[str, Any]

TOLD = "/told"
"""The shared folder in containers."""
PROGRAM = "_lent_training.py"
FILES = {
    f"benchmarks/{PROGRAM}": PROGRAM,
    "tests/operator/live_members.py": "tests/operator/live_members.py",
    "tests/sidecar/live_trainers.py": "tests/sidecar/live_trainers.py",
}
WAYS = ("live", "warm", "jobs")
GPU = "nvidia.com/gpu"
LIMIT_S = 300.0
CALM_S = 3.0
"""Team a trains for this time on all GPUs before team b comes."""
LOOK_S = 0.05
WATCH_S = 20.0
"""The jobs of team a are watched for this time after team b has its half."""
ENDLESS = 10**9


@dataclass(frozen=True)
class Scene:
    gpus_a_node: int
    lent: Mapping[str, Sequence[int]]
    """The jobs of team a, with their numbers of GPUs."""
    owed: Mapping[str, Sequence[int]]
    """Those of team b."""


SCENES = {
    "one": Scene(2, {"a": (2, 4)}, {"b": (2,)}),
    "several": Scene(4, {f"a{n}": (1, 2) for n in range(4)}, {f"b{n}": (2,) for n in range(2)}),
}


@click.command()
@click.option("--rounds", type=click.IntRange(1), default=1, show_default=True, help="Of all ways.")
@click.option("--scene", type=click.Choice(list(SCENES)), default="one", show_default=True)
@click.option("-o", "--output", type=click.Choice(["table", "json"]), default="table")
def main(*, rounds: int, scene: str, output: str) -> None:
    """Measure how long lent GPUs take to come back."""
    say("builds images where they are missing, and starts two nodes")
    # Before this process enters a network from which nothing can be fetched.
    find_module()
    try:
        with (
            tempfile.TemporaryDirectory(prefix="dljob-lending-") as folder,
            opened(Path(folder)) as cluster,
            Kueue(cluster.plane, Path(folder) / "kueue"),
            cluster.plane.api() as api,
        ):
            result = Lending(cluster, api, SCENES[scene]).measure(rounds)
    except Unavailable as error:
        raise CannotRun(f"no real nodes can be had here: {error}") from error
    print_result([{"scene": scene, "rounds": rounds}, *result, describe_machine()], output)


class Lending:
    """The teams, and what is seen of their jobs."""

    def __init__(self, cluster: Cluster, api: Api, scene: Scene) -> None:
        self._cluster, self._api, self._scene = cluster, api, scene
        self._turn = 0
        for source, target in FILES.items():
            place = cluster.folder / target
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / source, place)
        names = [node.name for node in cluster.nodes.nodes]
        cluster.give_gpus(**dict.fromkeys(names, scene.gpus_a_node))
        make_teams(api, len(names) * scene.gpus_a_node // 2, labels={POOL_LABEL: ""})
        self._namespace = make_namespace(api)
        # Kueue alone has no operator that lets its pods onto the nodes of the pool.
        allowed = {"metadata": {"labels": {"dljob.io/pool-access": "allowed"}}}
        api.merge(f"/api/v1/namespaces/{self._namespace}", allowed)
        say("installs the operator …")
        install(cluster, settings={**values()["settings"], "kueue": {"enabled": True}})

    def measure(self, rounds: int) -> list[Json]:
        seen: dict[str, list[Json]] = {way: [] for way in WAYS}
        with queues_of(self._api, self._namespace):
            for number in range(rounds):
                for way in WAYS:
                    seen[way].append(self._take_turn(way))
                    say(f"{number + 1} of {rounds}, {way}: {seen[way][-1]}")
        return [{"way": way, **_summarize(turns)} for way, turns in seen.items()]

    def _take_turn(self, way: str) -> Json:
        self._turn += 1
        folder, load = self._cluster.folder / f"turn-{self._turn}", os.getloadavg()[0]
        self._show_gpus(is_shown=way == "jobs")
        lent, owed = self._scene.lent, self._scene.owed
        for job, options in lent.items():
            self._submit(way, job, A, options, folder)
        wait_until(lambda: self._trains(way, lent), f"{way}: team a has all GPUs", limit_s=LIMIT_S)
        time.sleep(CALM_S)
        pods = self._list_pods()
        began = time.time()
        for job, options in owed.items():
            self._submit(way, job, B, options, folder)
        half = sum(map(max, owed.values()))
        files = [folder / job / "journal" for job in owed]
        stages: dict[str, Callable[[], bool]] = {
            "b_admitted_s": lambda: self._count_admitted(B) == half,
            "b_in_pods_s": lambda: len(self._list_pods() - pods) >= len(owed),
            "b_pods_run_s": lambda: not self._list_pods(phase="Pending"),
            "b_waited_s": lambda: all(map(_read_steps, files)),
        }
        wait = partial(wait_until, limit_s=LIMIT_S, every_s=LOOK_S)
        reached: Json = {}
        for stage, is_reached in stages.items():
            wait(is_reached, f"{way}: {stage}")
            reached[stage] = time.time() - began
        first = max(_read_steps(file)[0][1] for file in files)
        journals = [folder / job / "journal" for job in lent]
        # Some may wait until others end.
        until = first + WATCH_S
        wait(lambda: _go_on(journals, after=first) or time.time() > until, f"{way}: a goes on")
        seen_at = time.time()
        steps = [_read_steps(file) for file in journals]
        ended = len(pods - self._list_pods())
        self._clear(way)
        return {
            **reached,
            "b_waited_s": first - began,
            "a_jobs_that_go_on": sum(each[-1][1] > first for each in steps),
            "a_paused_s": max(_longest_pause(each, began, seen_at) for each in steps),
            "a_repeated": sum(len(each) - len({number for number, _ in each}) for each in steps),
            "a_pods_ended": ended,
            "load": load,
        }

    # --- jobs

    def _submit(self, way: str, name: str, team: str, options: Sequence[int], folder: Path) -> None:
        manner = "live" if way == "live" else "saved"
        told = f"{TOLD}/{folder.name}/{name}"
        container = {
            "name": "trainer",
            "image": TRAINER,
            "imagePullPolicy": "Never",
            "env": [
                {"name": "PYTHONPATH", "value": TOLD},
                {"name": "OMP_NUM_THREADS", "value": "1"},
            ],
            "command": ["python", f"{TOLD}/{PROGRAM}", told, manner],
            "volumeMounts": [{"name": "told", "mountPath": TOLD}],
        }
        volume = {"name": "told", "hostPath": {"path": str(self._cluster.folder)}}
        pod: Json = {"containers": [container], "volumes": [volume]}
        metadata: Json = {"name": name, "labels": {QUEUE_LABEL: team}}
        make = _make_job if way == "jobs" else partial(_make_dljob, is_warm=way == "warm")
        document = make(metadata, options, pod)
        self._api.post(self._path(way), document)

    def _path(self, way: str) -> str:
        if way == "jobs":
            return f"/apis/batch/v1/namespaces/{self._namespace}/jobs"
        return f"/apis/dljob.io/v1alpha1/namespaces/{self._namespace}/dljobs"

    def _trains(self, way: str, jobs: Mapping[str, Sequence[int]]) -> bool:
        """Return True if these jobs train on the most GPUs that they can use."""
        pick: Callable[[Json], int] = _count_ready if way == "jobs" else _count_gpus
        found = {each["metadata"]["name"]: each for each in self._api.get(self._path(way))["items"]}
        return all(
            pick(found[job]) == max(options) and (way != "live" or _is_live(found[job]))
            for job, options in jobs.items()
        )

    def _count_admitted(self, team: str) -> int:
        """Return the GPUs that Kueue has admitted for a team."""
        found = self._api.get(f"{KUEUE_API}/namespaces/{self._namespace}/workloads")["items"]
        return sum(
            pods["count"]
            for each in found
            if each["spec"]["queueName"] == team and is_true(each, "Admitted")
            for pods in each["spec"]["podSets"]
        )

    def _list_pods(self, *, phase: str = "") -> set[str]:
        """Return the pods, of this phase if one is named; one that is being deleted has ended for its job."""
        items = self._api.get(f"/api/v1/namespaces/{self._namespace}/pods")["items"]
        return {
            each["metadata"]["uid"]
            for each in items
            if "deletionTimestamp" not in each["metadata"]
            and phase in ("", each["status"].get("phase"))
        }

    def _clear(self, way: str) -> None:
        for job in (*self._scene.lent, *self._scene.owed):
            self._api.delete(f"{self._path(way)}/{job}", propagationPolicy="Background")

        def is_clear() -> bool:
            kinds = ("/api/v1/{}/pods", f"{KUEUE_API}/{{}}/workloads")
            place = f"namespaces/{self._namespace}"
            return not any(self._api.get(kind.format(place))["items"] for kind in kinds)

        wait_until(is_clear, f"{way}: all jobs are gone", limit_s=LIMIT_S)

    def _show_gpus(self, *, is_shown: bool) -> None:
        """Let the nodes have GPUs for pods that request some, as a device plugin does."""
        amounts = {GPU: str(self._scene.gpus_a_node) if is_shown else None}
        for node in self._cluster.nodes.nodes:
            status = {"status": {"capacity": amounts, "allocatable": amounts}}
            self._api.merge(f"/api/v1/nodes/{node.name}/status", status)


def _make_dljob(metadata: Json, options: Sequence[int], pod: Json, *, is_warm: bool) -> Json:
    spec: Json = {
        "gpus": {"options": list(options)},
        "framework": "pytorch",
        "processes": "perGpu",
        "training": {"iterations": ENDLESS},
        "progress": {"log": r"step (?P<iteration>\d+)"},
        "checkpoint": {"signal": "SIGTERM", "confirm": "exit", "trusted": True, "shared": True},
        "template": {"spec": pod},
    }
    if is_warm:
        spec["warmStart"] = {"preload": ["numpy"]}
    kind = {"apiVersion": "dljob.io/v1alpha1", "kind": "DLJob"}
    return {**kind, "metadata": metadata, "spec": spec}


def _make_job(metadata: Json, options: Sequence[int], pod: Json) -> Json:
    """Make a Job with a pod for each GPU, which Kueue may admit with fewer pods."""
    if len(options) > 1:
        metadata["annotations"] = {
            "kueue.x-k8s.io/job-min-parallelism": str(min(options)),
            "kueue.x-k8s.io/job-completions-equal-parallelism": "true",
        }
    container = {**pod["containers"][0], "resources": {"limits": {GPU: "1"}}}
    spec = {
        "parallelism": max(options),
        "completions": max(options),
        "completionMode": "Indexed",
        "backoffLimit": ENDLESS,
        "template": {
            "spec": {
                **pod,
                "containers": [container],
                "restartPolicy": "Never",
                "tolerations": [{"key": POOL_LABEL, "operator": "Exists"}],
            }
        },
    }
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": spec}


# --- what is seen -------------------------------------------------------------------------


def _count_ready(job: Json) -> int:
    return int(job.get("status", {}).get("ready", 0))


def _count_gpus(job: Json) -> int:
    status = job.get("status", {})
    is_running = status.get("phase") == "Running"
    return int(status.get("allocation", {}).get("gpus", 0)) if is_running else 0


def _is_live(job: Json) -> bool:
    found = job["status"].get("conditions", ())
    return any(each["type"] == "Live" and each["status"] == "True" for each in found)


def _read_steps(journal: Path) -> list[tuple[int, float]]:
    """Read each step with its time; the last line may be half written."""
    if not journal.exists():
        return []
    lines = [line.split() for line in journal.read_text().split("\n")[:-1]]
    return [(int(line[1]), float(line[-1])) for line in lines if line[0] == "step"]


def _go_on(journals: Sequence[Path], *, after: float) -> bool:
    return all(_read_steps(journal)[-1][1] > after for journal in journals)


def _longest_pause(steps: Sequence[tuple[int, float]], began: float, until: float) -> float:
    """Return the longest time without a step between two moments."""
    times = [at for _, at in steps if at >= began]
    before = max(at for _, at in steps if at < began)
    return max(late - early for early, late in zip([before, *times], [*times, until], strict=True))


def _summarize(turns: Sequence[Json]) -> Json:
    told: Json = {}
    for what in turns[0]:
        found = sorted(turn[what] for turn in turns)
        told[what] = {
            "median": round(statistics.median(found), 2),
            "least": round(found[0], 2),
            "most": round(found[-1], 2),
        }
    return told


if __name__ == "__main__":
    run(main)
