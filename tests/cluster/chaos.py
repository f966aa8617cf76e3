"""
The chaos test on real nodes: everything that can die is killed, and all jobs finish.

Jobs come, reshape and finish on two nodes. The test kills the leading operator (its process, or its pod
by force), SideCars, trainings, a kubelet, a job's pod by force, and the store's server. As on one machine,
each training logs its GPUs and holds a lock for each of them; a checker that knows nothing of operators
reads the logs.

``python -m tests.cluster.chaos --disturbances 100`` is the long run; it needs root.
"""

import argparse
import json
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.chaos.processes import TRAINER as SCRIPT
from tests.chaos.processes import job_of, kill
from tests.chaos.testimony import (
    Disturbance,
    Expected,
    Life,
    count_changes,
    find_broken_laws,
    read_all,
)
from tests.chaos.worlds import EVALUATIONS, job_document
from tests.chart.helms import HOME
from tests.cluster.clusters import Cluster, install, opened, values
from tests.cluster.looking import View
from tests.servers.api import Json
from tests.servers.binaries import FERRETDB, find_all
from tests.servers.images import TRAINER as IMAGE
from tests.servers.mongo import MongoServer
from tests.servers.namespaces import make_namespace
from tests.servers.realnodes import HOST
from tests.sidecar.drivers import find_processes, read_proc

JOBS = 10
AT_A_TIME = (1, 2, 4, 6)
"""The largest number of active jobs changes now and then: few grow, and many make room."""
NODES = {"node1": 4, "node2": 4}
"""The number of GPUs of each node."""
SECONDS_A_STEP = 0.04
"""On one GPU."""
LOOK_SECONDS = 0.3
PATIENCE_SECONDS = 400.0
"""The longest time without progress; a kubelet restarts a container that has ended often only after minutes."""
LEASE = {"leaseSeconds": 16, "renewSeconds": 2, "giveUpSeconds": 14, "lookSeconds": 0.5}
"""Another operator leads soon, and a busy machine makes none resign."""


class Trouble:
    """The disturbances of a cluster, and their observed effects."""

    def __init__(
        self, view: View, folder: Path, store: MongoServer, *, jobs: int, seed: int
    ) -> None:
        self.view = view
        self.folder = folder
        self.store = store
        self.jobs = jobs
        self.most = max(AT_A_TIME)
        self.chance = random.Random(seed)
        self.place = Path(f"/chaos-{view.namespace}")
        """The folder in containers; no other command on this machine names it."""
        self.iterations: dict[str, int] = {}
        self.disturbances: list[Disturbance] = []
        self.happened: Counter[str] = Counter()
        self.restarted: dict[str, tuple[int, str]] = {}
        """By pod uid: the restarts of its container, and the last end."""
        self.kills: Counter[str] = Counter()
        """By pod uid: our kills of the first process of its container."""
        self.away: list[tuple[str, Callable[[], None]]] = []
        """The parts that are down, with functions to start them."""
        (folder / "witness").mkdir()
        shutil.copy(SCRIPT, folder / SCRIPT.name)

    # --- jobs

    def submit_some(self) -> None:
        phases = self.phases()
        active = sum(phase not in ("Completed", "Failed") for phase in phases.values())
        if active >= self.most:
            return
        while len(self.iterations) < self.jobs and active < self.most:
            name = f"job-{len(self.iterations)}"
            self.iterations[name] = int(self.chance.uniform(20.0, 40.0) / SECONDS_A_STEP)
            self.view.kubectl("create", "-f", "-", stdin=json.dumps(self._document(name)))
            active += 1
        self.most = self.chance.choice(AT_A_TIME)

    def _document(self, name: str) -> Json:
        document = job_document(
            name,
            self.place,
            iterations=self.iterations[name],
            ends_when_saved=self.chance.random() < 0.5,
            evaluates=self.chance.choice(EVALUATIONS),
            is_forgotten=False,
            options=self.chance.choice([[1, 2, 4], [1, 2, 4, 8], [2, 4]]),
            program=["python3", "-S", "-E", str(self.place / SCRIPT.name)],
        )
        pod = document["spec"]["template"]["spec"]
        [container] = pod["containers"]
        node = {"fieldRef": {"fieldPath": "spec.nodeName"}}
        container |= {
            "env": [{"name": "CHAOS_NODE", "valueFrom": node}],
            "image": IMAGE,
            "imagePullPolicy": "Never",
            "volumeMounts": [{"name": "chaos", "mountPath": str(self.place)}],
        }
        pod["volumes"] = [{"name": "chaos", "hostPath": {"path": str(self.folder)}}]
        return document

    def phases(self) -> dict[str, str]:
        items = self.view.find("dljobs")
        return {each["metadata"]["name"]: each.get("status", {}).get("phase", "") for each in items}

    def operators(self) -> list[Json]:
        selected = "app.kubernetes.io/component=operator"
        return self.view.find("pods", namespace=HOME, labelSelector=selected)

    def saved(self) -> int:
        files = self.folder.glob("jobs/*/checkpoint/iteration")
        return sum(int(file.read_text()) for file in files)

    # --- disturbances

    def disturb(self, kind: str) -> bool:
        """Cause a disturbance; return whether there was an object for it."""
        self.bring_back()
        acts: dict[str, Callable[[], bool]] = {
            "operator killed": self._kill_operator,
            "operator's pod deleted by force": self._delete_operator,
            "SideCar killed": self._kill_sidecar,
            "training killed": self._kill_training,
            "kubelet killed": self._kill_kubelet,
            "pod deleted by force": self._delete_pod,
            "store killed": self._kill_store,
        }
        if not acts[kind]():
            return False
        self.happened[kind] += 1
        return True

    def bring_back(self) -> None:
        """Start the parts that are down."""
        while self.away:
            name, come_back = self.away.pop()
            come_back()
            self.happened[f"{name} comes back"] += 1

    def _leader(self) -> Json | None:
        selected = "metadata.name=dljob-operator"
        [lease] = self.view.find("leases", namespace=HOME, fieldSelector=selected)
        holder = lease["spec"].get("holderIdentity", "")
        return next(
            (pod for pod in self.operators() if holder.startswith(pod["metadata"]["name"])), None
        )

    def _kill_operator(self) -> bool:
        leader = self._leader()
        if leader is None:
            return False
        found = _find_in_pod("dljob.operator", leader["metadata"]["name"])
        for pid in found:
            kill(pid)
        self.kills[leader["metadata"]["uid"]] += 1
        return bool(found)

    def _delete_operator(self) -> bool:
        leader = self._leader()
        if leader is not None:
            self._delete_by_force(leader["metadata"]["name"], "-n", HOME)
        return leader is not None

    def _kill_sidecar(self) -> bool:
        pods = [pod for pod in self._training_pods() if not self.kills[pod["metadata"]["uid"]]]
        if not pods:
            return False
        pod = self.chance.choice(pods)
        job = pod["metadata"]["labels"]["dljob.io/job"]
        mark = f"--job-uid={pod['metadata']['ownerReferences'][0]['uid']}"
        found = _find_in_pod(mark, pod["metadata"]["name"])
        self.kills[pod["metadata"]["uid"]] += 1
        with self._disturbing(job):
            for pid in found:
                kill(pid)
        return bool(found)

    def _kill_training(self) -> bool:
        found = self._trainings()
        if not found:
            return False
        pid, job = self.chance.choice(found)
        with self._disturbing(job):
            kill(pid)
        return True

    def _kill_kubelet(self) -> bool:
        node = self.chance.choice(self.view.cluster.nodes.nodes)
        node.kubelet.kill()
        self.away.append(("kubelet", node.kubelet.start))
        return True

    def _delete_pod(self) -> bool:
        pods = self._training_pods()
        if not pods:
            return False
        pod = self.chance.choice(pods)
        with self._disturbing(pod["metadata"]["labels"]["dljob.io/job"]):
            self._delete_by_force(pod["metadata"]["name"], "-n", self.view.namespace)
        return True

    def _kill_store(self) -> bool:
        self.store.kill()
        self.away.append(("store", self.store.start))
        return True

    def _delete_by_force(self, name: str, *where: str) -> None:
        words = ("--force", "--grace-period=0", "--wait=false")
        self.view.cluster.kubectl("delete", "pod", name, *where, *words)

    @contextmanager
    def _disturbing(self, job: str) -> Iterator[None]:
        """Note a disturbance before and after, because the job may restart in between."""
        self._note(job)
        yield
        self._note(job)

    def _note(self, job: str) -> None:
        self.disturbances.append(Disturbance(job, time.monotonic()))

    def _training_pods(self) -> list[Json]:
        jobs = {job for _, job in self._trainings()}
        pods = self.view.find("pods", labelSelector="dljob.io/role=trainer")
        return [
            pod
            for pod in pods
            if pod["metadata"]["labels"]["dljob.io/job"] in jobs
            and pod["status"].get("phase") == "Running"
            and "deletionTimestamp" not in pod["metadata"]
        ]

    def _trainings(self) -> list[tuple[int, str]]:
        script = str(self.place / SCRIPT.name)
        found = []
        for pid in find_processes(script):
            words = read_proc(pid, "cmdline").decode().split("\0")
            if script in words[:5] and not any(word.endswith(".pyz") for word in words):
                found.append((pid, job_of(" ".join(words))))
        return found

    # --- the run

    def poll(self) -> None:
        """Note the containers that were restarted."""
        for pod in [*self.view.find("pods"), *self.operators()]:
            name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
            for container in pod["status"].get("containerStatuses", ()):
                count, ended = container["restartCount"], container.get("lastState", {})
                if count > self.restarted.get(uid, (0, ""))[0]:
                    self.restarted[uid] = (count, f"{name}: {json.dumps(ended)}")
                    self.kills[uid] += self._was_cancelled(ended)

    def _was_cancelled(self, ended: Json) -> bool:
        """Whether a killed kubelet cancelled the start of the container."""
        never_ran = ended.get("terminated", {}).get("reason") == "StartError"
        return never_ran and self.happened["kubelet killed"] > 0

    def wait_for(self, is_so: Callable[[], bool], what: str) -> None:
        """Submit jobs until something is so, as long as there is progress."""
        reached, since = self.saved(), time.monotonic()
        while not is_so():
            self.submit_some()
            self.poll()
            if (now := self.saved()) > reached:
                reached, since = now, time.monotonic()
            waited = time.monotonic() - since
            assert waited < PATIENCE_SECONDS, f"{what} does not come\n{self.view.tell()}"
            time.sleep(LOOK_SECONDS)

    def run(self, kinds: list[str]) -> None:
        """Cause these disturbances one by one, spread over the work of all jobs."""
        self.wait_for(lambda: bool(self._trainings()), "the first training")
        for number, kind in enumerate(kinds):
            part = 0.9 * number / len(kinds)
            self.wait_for(lambda: self.saved() >= part * self._work(), f"{part:.0%} of all")  # noqa: B023
            self.wait_for(lambda: self.disturb(kind), f"an occasion for: {kind}")  # noqa: B023
        self.bring_back()
        self.wait_for(self._are_completed, "the end of all jobs")
        self.wait_for(lambda: not self._trainings(), "the end of all processes")

    def _work(self) -> float:
        """The iterations of all jobs, with those that have not come yet at the average."""
        return self.jobs * sum(self.iterations.values()) / len(self.iterations)

    def _are_completed(self) -> bool:
        phases = self.phases()
        return len(phases) == self.jobs and set(phases.values()) == {"Completed"}

    def lives(self) -> list[Life]:
        return read_all(self.folder / "witness")

    def verify(self) -> None:
        """Assert that no law was broken, and that no container restarted without this test's doing."""
        lives = self.lives()
        expected = Expected(self.iterations, disturbances=tuple(self.disturbances))
        broken = find_broken_laws(lives, expected)
        assert not broken, broken
        unasked = [what for uid, (n, what) in self.restarted.items() if n > self.kills[uid]]
        assert not unasked, f"containers restarted by themselves: {unasked}"
        happened = ", ".join(f"{kind} {times}" for kind, times in sorted(self.happened.items()))
        sys.stdout.write(
            f"\n{len(self.iterations)} jobs, {len(lives)} processes of them,"
            f" {count_changes(lives)} changes of GPUs; {happened}\n"
        )


def _find_in_pod(token: str, pod: str) -> list[int]:
    """The processes of a pod with a token in their commands, by their pids on the machine."""
    name = f"HOSTNAME={pod}\0".encode()
    return [pid for pid in find_processes(token) if name in read_proc(pid, "environ")]


KINDS = (
    "operator killed",
    "training killed",
    "SideCar killed",
    "kubelet killed",
    "training killed",
    "operator's pod deleted by force",
    "pod deleted by force",
    "store killed",
    "SideCar killed",
)


@contextmanager
def controlled(cluster: Cluster, store: MongoServer) -> Iterator[None]:
    """Give the operator this store and a short Lease."""
    keeping = {"type": "mongodb", "mongodb": {"url": store.url("dljob")}}
    settings = {**values()["settings"], "lease": LEASE}
    install(cluster, store=keeping, settings=settings)
    try:
        yield
    finally:
        install(cluster)


def survive(view: View, folder: Path, ferretdb: Path, *, disturbances: int, seed: int) -> None:
    """Cause disturbances while jobs come and finish, and assert that no law was broken."""
    chance = random.Random(seed)
    rounds = -(-disturbances // len(KINDS))
    kinds = [kind for _ in range(rounds) for kind in chance.sample(KINDS, len(KINDS))]
    jobs = max(JOBS, disturbances)
    view.cluster.give_gpus(**NODES)
    with (
        MongoServer(ferretdb, folder / "store", host=HOST) as store,
        controlled(view.cluster, store),
    ):
        trouble = Trouble(view, folder, store, jobs=jobs, seed=seed)
        try:
            trouble.run(kinds[:disturbances])
        finally:
            trouble.bring_back()
        trouble.verify()


def main() -> None:
    options = argparse.ArgumentParser(prog="tests.cluster.chaos")
    options.add_argument("--disturbances", type=int, default=60)
    options.add_argument("--seed", type=int, default=1)
    given = options.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="dljob-chaos-"))
    with opened(folder) as cluster, cluster.plane.api() as api:
        view = View(cluster, api, make_namespace(api))
        ours = cluster.folder / view.namespace
        ours.mkdir()
        ferretdb = find_all(FERRETDB)["dljob-test-ferretdb"]
        survive(view, ours, ferretdb, disturbances=given.disturbances, seed=given.seed)
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
