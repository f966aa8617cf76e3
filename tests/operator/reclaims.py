"""
Kueue takes GPUs back again and again while operators die around all of their writes, and no layer stays behind.

The trouble is that of :mod:`tests.operator.chaos`, and the Kueue is real. Two teams lend each other their GPUs; jobs come,
end and are deleted, and Workloads of other programs come and go in both queues. A witness that sees the processes holds that
no job ever uses more GPUs than Kueue counts for it. The audit log of the API server tells of each eviction.

``python -m tests.operator.reclaims --evictions 500`` is the long run.
"""

import argparse
import math
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import ClassVar, NamedTuple

from dljob.kube import names
from tests.chaos.points import Plan
from tests.chaos.processes import trainings
from tests.chaos.testimony import Expected, find_broken_laws, read_all
from tests.operator.chaos import LIFE_S, NODES, PATIENT_S, Trouble
from tests.operator.queues import (
    QUEUE_LABEL,
    A,
    B,
    is_true,
    make_teams,
    queues_of,
    submit_other,
    workloads,
)
from tests.operator.stages import Stage, staged
from tests.operator.wires import Wire
from tests.servers.api import Json, Refused
from tests.servers.audits import read_events
from tests.servers.binaries import KUEUE, find_all
from tests.servers.controlplane import PROGRAMS, ControlPlane, Wishes
from tests.servers.namespaces import make_namespace
from tests.servers.processes import Server
from tests.servers.queueing import KUEUE_API, Kueue
from tests.sidecar.drivers import read_proc

OWNED = sum(NODES.values()) // 2
"""The GPUs of a team."""
AUDIT = {
    "omitStages": ["RequestReceived", "ResponseStarted"],
    "rules": [
        {
            "level": "RequestResponse",
            "verbs": ["create", "update", "patch", "delete"],
            "resources": [
                {"group": "kueue.x-k8s.io", "resources": ["workloads", "workloads/status"]}
            ],
        },
        {"level": "None"},
    ],
}
ACTS = ("asked", "ready", "cleared", "gone")
"""The writes of the operator for Kueue."""
KINDS = ("anywhere", "at a write", "late", "late")
"""The kinds of deaths of operators."""
LONG_LIFE_S = 60.0
COMES, GOES, DELETES = 0.5, 0.2, 0.004
"""The probabilities, at each look, of a Workload of another program, of its end, and of a job's deletion."""


class Eviction(NamedTuple):
    workload: str
    end: str
    """How it ended: ``cleared``, ``gone``, or empty."""
    seconds: float


class Reclaims(Trouble):
    """The trouble with reclaims in it."""

    # A Lease that an operator keeps on a busy machine.
    settings: ClassVar = {
        "kueue.enabled": "true",
        "lease.leaseSeconds": 20,
        "lease.giveUpSeconds": 15,
        "lease.renewSeconds": 2,
    }
    work_s: ClassVar = (20.0, 60.0)

    def __init__(self, stage: Stage, wire: Wire, *, seed: int) -> None:
        super().__init__(stage, wire, jobs=sys.maxsize, seed=seed, hostile=0)
        self.deleted: set[str] = set()
        self.done: set[str] = set()
        """Jobs that were completed, had no layer any more, and were deleted then."""
        self.evictions: set[tuple[str, str]] = set()
        """The seen evictions of layers, by Workload and time."""
        self.others: set[str] = set()
        self.taken = 0
        """How many Workloads of other programs have come."""
        self.looks = 0
        """How often the quota was compared with the processes."""

    def draw_labels(self) -> Mapping[str, str]:
        return {QUEUE_LABEL: self.chance.choice((A, A, B))}

    def start(self, plan: Plan, told: object) -> Server:
        with suppress(Refused):
            # An operator may have died before it had a Lease.
            self.stage.let_lease_end()
        return super().start(plan, told)

    def draw_plan(self) -> Plan:
        """Draw a death at any point, one at a write for Kueue, or none for a while, in which most reclaims take place."""
        kind = self.chance.choice(KINDS)
        self.life_s = LONG_LIFE_S if kind == "late" else LIFE_S
        if kind == "anywhere":
            return super().draw_plan()
        seed, spares = self.chance.getrandbits(32), self.chance.choice((0, 50, 150))
        # The last is killed from outside, when it has led for a while.
        return Plan(seed, only=ACTS, spares=sys.maxsize if kind == "late" else spares)

    def make_trouble(self) -> None:
        super().make_trouble()
        self.delete_some()
        self.lend_and_take()
        self.check_quota()

    def submit_some(self) -> None:
        super().submit_some()
        # Other programs write to the active jobs, which are there.
        self.active = [name for name in self.active if name not in self.deleted]
        self.running = [name for name in self.running if name not in self.deleted]

    def delete_some(self) -> None:
        for name in self.running:
            if self.chance.random() < DELETES:
                self.deleted.add(name)
                self.suspended.discard(name)
                self.stage.api.delete(self.stage.path(name))
        owners = {owner_of(each) for each in workloads(self.stage).values()}
        for each in self.stage.api.get(self.stage.path())["items"]:
            name = each["metadata"]["name"]
            is_over = each.get("status", {}).get("phase") == "Completed"
            if is_over and name not in owners | self.deleted | self.done:
                self.done.add(name)
                self.suspended.discard(name)
                self.stage.api.delete(self.stage.path(name))

    def lend_and_take(self) -> None:
        if self.chance.random() < COMES and len(self.others) < 3:
            name = f"other-{self.taken}"
            self.taken += 1
            self.others.add(name)
            team, gpus = self.chance.choice((A, B)), self.chance.randint(1, OWNED)
            submit_other(self.stage, team, gpus, name)
        for name in sorted(self.others):
            if self.chance.random() < GOES:
                self.end_other(name)

    def end_other(self, name: str) -> None:
        self.others.discard(name)
        self.stage.api.delete(f"{KUEUE_API}/namespaces/{self.stage.namespace}/workloads/{name}")

    def check_quota(self) -> None:
        """Hold that no job has processes on more GPUs than Kueue counts for it."""
        before = self.count_quota()
        used = count_used(self.stage.folder)
        after = self.count_quota()
        self.looks += 1
        for job, gpus in used.items():
            quota = max(before[job], after[job])
            assert gpus <= quota, f"{job} uses {gpus} GPUs, and Kueue counts {quota}"

    def count_quota(self) -> Counter[str]:
        quota: Counter[str] = Counter()
        for each in workloads(self.stage).values():
            job = owner_of(each)
            if job and is_true(each, "QuotaReserved"):
                quota[job] += sum(pods["count"] for pods in each["spec"]["podSets"])
                self.evictions |= find_evictions(each)
        return quota

    def come_to_rest(self) -> None:
        self.jobs = 0
        for name in list(self.others):
            self.end_other(name)
        super().come_to_rest()
        self.stage.wait(lambda: workloads(self.stage) == {})

    def is_completed(self, name: str) -> bool:
        if name in self.done:
            return True
        if name not in self.deleted:
            return super().is_completed(name)
        self.operate()
        return self.stage.is_gone(name)


def owner_of(workload: Json) -> str:
    """Return the job of a layer; empty for Workloads of other programs."""
    return str(workload["metadata"].get("labels", {}).get(names.JOB_LABEL, ""))


def find_evictions(workload: Json) -> set[tuple[str, str]]:
    return {
        (workload["metadata"]["uid"], each["lastTransitionTime"])
        for each in workload["status"]["conditions"]
        if (each["type"], each["status"]) == ("Evicted", "True")
    }


def count_used(folder: Path) -> Counter[str]:
    """Return on how many GPUs there are processes of each job."""
    gpus: dict[str, set[tuple[str, str]]] = {}
    for pid, job in trainings(folder).items():
        lines = (line.partition("=") for line in read_proc(pid, "environ").decode().split("\0"))
        told = {name: value for name, _, value in lines}
        node, numbers = told.get("CHAOS_NODE", ""), told.get("CUDA_VISIBLE_DEVICES", "")
        gpus.setdefault(job, set()).update((node, each) for each in numbers.split(",") if each)
    return Counter({job: len(each) for job, each in gpus.items()})


def read_evictions(log: Path) -> list[Eviction]:
    """Read each eviction of a layer, and its end."""
    since: dict[str, float] = {}
    found: list[Eviction] = []
    for event in sorted(read_events(log), key=lambda each: str(each["stageTimestamp"])):
        if event["responseStatus"]["code"] >= 300:
            continue
        name, at = event["objectRef"].get("name", ""), read_time(event["stageTimestamp"])
        shown: Json = event.get("responseObject") or {}
        is_ours = "metadata" in shown and bool(owner_of(shown))
        is_gone = event["verb"] == "delete"
        is_taken = is_ours and is_true(shown, "Evicted") and is_true(shown, "QuotaReserved")
        if name in since and (is_gone or not is_taken):
            seconds = at - since.pop(name)
            found.append(Eviction(name, "gone" if is_gone else "cleared", seconds))
        elif is_taken and not is_gone:
            since.setdefault(name, at)
    return found + [Eviction(name, "", math.inf) for name in since]


def read_time(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


class Told(NamedTuple):
    trouble: Reclaims
    evictions: list[Eviction]


def survive(
    plane: ControlPlane, folder: Path, *, evictions: int, seed: int, is_thorough: bool = True
) -> Told:
    """
    Let operators die until so many layers were evicted, and hold that no law was broken.

    A thorough run ends only when an operator has died before and after each kind of write for Kueue.
    """
    began = time.monotonic()
    with plane.api() as api, Kueue(plane, folder / "kueue"):
        make_teams(api, OWNED)
        namespace = make_namespace(api)
        with (
            queues_of(api, namespace),
            staged(plane, namespace, folder, NODES) as stage,
            Wire(plane.admin, folder) as wire,
        ):
            stage.kubeconfig, stage.patience = wire.kubeconfig, PATIENT_S
            trouble = Reclaims(stage, wire, seed=seed)
            number = 0
            while len(trouble.evictions) < evictions or (is_thorough and find_spared(trouble)):
                trouble.live_and_die(number)
                number += 1
            trouble.come_to_rest()
            lives = read_all(folder / "witness")
            expected = Expected(
                trouble.iterations,
                given_up=frozenset(trouble.deleted),
                disturbances=tuple(trouble.disturbances),
                outlived=1,
                is_hasty=True,
            )
            broken = find_broken_laws(lives, expected)
            found = read_evictions(plane.audit_log)
            broken += [f"{each.workload} was never cleared" for each in found if not each.end]
            assert not broken, broken
            trouble.tell(len(lives))
            tell(Told(trouble, found), time.monotonic() - began)
    return Told(trouble, found)


def find_spared(trouble: Trouble) -> set[str]:
    """Return the writes for Kueue around which no operator has died yet."""
    kinds = {f"{when} quota {act}" for when in ("before", "after") for act in ACTS}
    return kinds - set(trouble.deaths)


def tell(told: Told, took: float) -> None:
    trouble, found = told
    waited = sorted(each.seconds for each in found)
    ends = Counter(each.end for each in found)
    sys.stdout.write(
        f"{len(found)} evictions of layers by {trouble.taken} Workloads of other programs and by jobs in {took:.0f} s:"
        f" {dict(ends)}, after {waited[len(waited) // 2]:.2f} s (median), {waited[-1]:.1f} s (longest,"
        f" with deaths); {len(trouble.deleted)} jobs deleted; processes and quota compared {trouble.looks} times\n"
    )


def main() -> None:
    options = argparse.ArgumentParser(prog="tests.operator.reclaims")
    options.add_argument("--evictions", type=int, default=500)
    options.add_argument("--seed", type=int, default=1)
    given = options.parse_args()
    find_all(KUEUE)
    folder = Path(tempfile.mkdtemp(prefix="dljob-reclaims-"))
    wishes = Wishes(audit_policy=AUDIT)
    with ControlPlane(folder / "plane", wishes, programs=find_all(*PROGRAMS)) as plane:
        survive(plane, folder, evictions=given.evictions, seed=given.seed)
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
