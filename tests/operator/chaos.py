"""
Operators die around their writes and commands, trainings and SideCars with them, and all jobs finish.

Meanwhile connections to the API server are cut, answers of it are lost, other programs write the
objects that the operator is about to write, and the API server restarts. The witness is that of the
one-machine chaos: each training process logs which GPUs it had, and holds a lock for each of them;
a checker that knows nothing of operators reads the logs.

``python -m tests.operator.chaos --deaths 100`` is the long run.
"""

import argparse
import json
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import ClassVar

from tests.chaos.hostiles import Hostiles, is_hostile
from tests.chaos.points import Plan
from tests.chaos.processes import kill, trainings
from tests.chaos.testimony import Disturbance, Expected, find_broken_laws, read_all
from tests.chaos.worlds import (
    EVALUATIONS,
    RESUMES,
    SUSPENDS,
    SUSPENDS_LATE,
    has_taken_its_last_step,
    job_document,
)
from tests.operator.hostiles import on_stage
from tests.operator.stages import LEADS, PATIENCE_S, Stage, staged
from tests.operator.wires import Wire
from tests.servers.api import Refused
from tests.servers.binaries import find_all
from tests.servers.controlplane import PROGRAMS, ControlPlane
from tests.servers.namespaces import make_namespace
from tests.servers.processes import Server

NODES = {"gpu-a": 4, "gpu-b": 4}
JOBS = 20
RESTART_EVERY = 10
"""The API server restarts once in this number of lives of the operator."""
AT_A_TIME = 6
OUTSIDE = "from outside"
LIFE_S = 15.0
"""An operator that has led for this time without reaching a deadly point is killed wherever it is."""
QUICK = {
    "lease.leaseSeconds": 2,
    "lease.renewSeconds": 0.5,
    "lease.giveUpSeconds": 1.5,
    "lease.lookSeconds": 0.2,
    "rules.retrySeconds": 0.2,
    "rules.longestRetrySeconds": 1,
    "rules.lostSeconds": 10,
    "rules.obeySeconds": 10,
    "pace.periodSeconds": 2,
    "dialing.waitSeconds": 2,
    "dialing.longestPauseSeconds": 0.5,
    "dialing.refusedPauseSeconds": 0.5,
}
CALM = {name: value for name, value in QUICK.items() if not name.startswith("lease.")}
"""For an operator that lives on: a busy machine renews a Lease late."""
PATIENT_S = 400.0
"""The test accepts this time without progress, because a busy machine may be starting an operator again."""


class Trouble:
    """The disturbances of a stage."""

    settings: ClassVar[Mapping[str, object]] = {}
    """More settings of the operators."""
    work_s: ClassVar = (3.0, 9.0)
    """The shortest and the longest time of a job on one GPU."""
    life_s = LIFE_S

    def __init__(self, stage: Stage, wire: Wire, *, jobs: int, seed: int, hostile: int) -> None:
        self.stage = stage
        self.wire = wire
        self.chance = random.Random(seed)
        self.jobs = jobs
        self.conflicts = 0
        self.restarts = 0
        self.active: list[str] = []
        self.running: list[str] = []
        self.suspended: set[str] = set()
        self.suspensions = 0
        self.deaths: Counter[str] = Counter()
        self.disturbances: list[Disturbance] = []
        self.iterations: dict[str, int] = {}
        self.hostiles = Hostiles(on_stage(stage, NODES), at_once=hostile, seed=seed)
        (stage.folder / "witness").mkdir()

    def submit_some(self) -> None:
        active = [
            each
            for each in self.stage.api.get(self.stage.path())["items"]
            if each.get("status", {}).get("phase") not in ("Completed", "Failed")
            and not is_hostile(each["metadata"]["name"])
        ]
        self.active = [each["metadata"]["name"] for each in active]
        self.running = [
            each["metadata"]["name"]
            for each in active
            if each.get("status", {}).get("phase") == "Running"
        ]
        while len(self.iterations) < self.jobs and len(active) < AT_A_TIME:
            name = f"job-{len(self.iterations)}"
            self.iterations[name] = int(self.chance.uniform(*self.work_s) / 0.04)
            document = job_document(
                name,
                self.stage.folder,
                iterations=self.iterations[name],
                ends_when_saved=self.chance.random() < 0.5,
                evaluates=self.chance.choice(EVALUATIONS),
                is_forgotten=False,
                options=self.chance.choice([[1, 2, 4], [1, 2], [1, 2, 4, 8], [2, 4]]),
            )
            document["spec"]["template"]["spec"]["containers"][0]["image"] = "training"
            document["metadata"]["labels"] = self.draw_labels()
            active.append(self.stage.api.post(self.stage.path(), document))

    def draw_labels(self) -> Mapping[str, str]:
        """Draw the labels of a new job."""
        return {}

    def suspend_some(self) -> None:
        """Suspend and resume jobs now and then, preferably after their last step."""
        for name in list(self.suspended):
            if self.chance.random() < RESUMES:
                self.suspend(name, suspended=False)
        for name in self.running:
            is_late = has_taken_its_last_step(self.stage.folder, name, self.iterations[name])
            if self.chance.random() < (SUSPENDS_LATE if is_late else SUSPENDS):
                self.suspend(name, suspended=True)
                self.suspensions += 1

    def suspend(self, name: str, *, suspended: bool) -> None:
        self.stage.api.merge(self.stage.path(name), {"spec": {"suspend": suspended}})
        (self.suspended.add if suspended else self.suspended.discard)(name)

    def draw_plan(self) -> Plan:
        """Draw when the next operator dies."""
        return Plan(
            seed=self.chance.getrandbits(32),
            deaths=dict(self.deaths),
            spares=self.chance.choice((0, 10, 30, 80)),
        )

    def live_and_die(self, number: int) -> None:
        """Run an operator until it dies at a point or is killed."""
        plan = self.draw_plan()
        told = self.stage.folder / f"death-{number}"
        operator = self.start(plan, told)
        # The time does not include its start.
        end = time.monotonic() + PATIENCE_S
        is_leading = False
        while operator.is_running and time.monotonic() < end:
            self.make_trouble()
            if not is_leading and LEADS in operator.log.read_text():
                is_leading = True
                end = time.monotonic() + self.life_s
            time.sleep(0.1)
        is_by_itself = not operator.is_running
        operator.kill()
        # An operator that cannot renew its Lease ends by itself.
        gave_up = is_by_itself and not told.exists()
        assert not gave_up or "leads no more" in operator.last_words(), operator.last_words()
        how = told.read_text() if told.exists() else "gave up" if gave_up else OUTSIDE
        self.deaths[how] += 1
        sys.stderr.write(f"{number + 1}. death: {how}; {len(self.iterations)} jobs have come\n")

    def make_trouble(self) -> None:
        """Called again and again while an operator runs."""
        self.submit_some()
        self.suspend_some()
        self.hostiles.go_on()
        self.disturb(0.02)
        self.obstruct(0.05)

    def obstruct(self, likelihood: float) -> None:
        """Disturb the connection between operator and API server."""
        if self.chance.random() > likelihood:
            return
        match self.chance.choice(("cut", "lose", "conflict")):
            case "cut":
                self.wire.cut()
            case "lose":
                self.wire.lose_answers(self.chance.randint(1, 3))
            case "conflict":
                for name in self.active:
                    changed = {"annotations": {"example.com/mark": str(self.conflicts)}}
                    self.stage.api.merge(self.stage.path(name), {"metadata": changed})
                    self.conflicts += 1

    def restart_server(self) -> None:
        """Restart the API server, while an operator works or has just died."""
        self.stage.plane.api_server.kill()
        self.stage.plane.api_server.start()
        self.stage.wait(self._answers)
        self.restarts += 1

    def _answers(self) -> bool:
        """Whether the API server serves jobs, a moment after it reports readiness."""
        try:
            self.stage.api.get(self.stage.path())
        except (OSError, Refused):
            return False
        return True

    def start(self, plan: Plan, told: object) -> Server:
        words = [
            sys.executable,
            "-m",
            "tests.operator.mortals",
            json.dumps(asdict(plan)),
            str(told),
        ]
        settings = {**(CALM if plan.is_calm else QUICK), **self.settings}
        return self.stage.start_operator(program=[*words, "--"], launches=True, settings=settings)

    def disturb(self, likelihood: float) -> None:
        if self.chance.random() > likelihood:
            return
        found = [*trainings(self.stage.folder).items()]
        if self.chance.random() < 0.5:
            pods = self.stage.kubelets.pids().items()
            found = [(pid, pod.rpartition("-")[0]) for pod, pid in pods]
        if found:
            pid, job = self.chance.choice(found)
            # On a busy machine the job may have restarted between the choice and the kill.
            self._note(job)
            kill(pid)
            self._note(job)

    def _note(self, job: str) -> None:
        if not is_hostile(job):
            self.disturbances.append(Disturbance(job, time.monotonic()))

    def come_to_rest(self) -> None:
        """Let everything end, with an operator that lives."""

        def have_left() -> bool:
            self.operate()
            return self.hostiles.leave()

        def come_after(number: int) -> bool:
            self.submit_some()
            self.operate()
            return len(self.iterations) > number

        self.stage.wait(have_left)
        while (number := len(self.iterations)) < self.jobs:
            self.stage.wait(partial(come_after, number))
        for name in self.iterations:
            self.stage.wait(partial(self.is_completed, name))
        self.stage.wait(lambda: not trainings(self.stage.folder))

    def operate(self) -> None:
        """Keep an operator running, as a cluster does."""
        for name in list(self.suspended):
            self.suspend(name, suspended=False)
        if not self.stage.operators[-1].is_running:
            self.start(Plan(seed=0, is_calm=True), self.stage.folder / "calm")

    def is_completed(self, name: str) -> bool:
        self.operate()
        return self.stage.phase(name) == "Completed"

    def tell(self, starts: int) -> None:
        """Print a summary of the run, which ``pytest -s`` shows."""
        points = ", ".join(f"{kind} {times}" for kind, times in self.deaths.most_common())
        sys.stdout.write(
            f"\n{self.deaths.total()} operators died at {len(self.deaths)} kinds of points: {points}\n"
            f"{len(self.hostiles.kinds)} hostile jobs of {len(set(self.hostiles.kinds))} kinds,"
            f" {starts} starts of {len(self.iterations)} jobs, disturbed {len(self.disturbances) // 2} times,"
            f" suspended {self.suspensions} times;"
            f" {self.wire.cuts} connections cut, {self.wire.lost} answers lost, {self.conflicts} writes"
            f" in between, {self.restarts} restarts of the API server\n"
        )


def survive(
    plane: ControlPlane, namespace: str, folder: Path, *, deaths: int, seed: int, hostile: int = 0
) -> Trouble:
    """Let this number of operators die while jobs come and finish, and hold that no law was broken."""
    with staged(plane, namespace, folder, NODES) as stage, Wire(plane.admin, folder) as wire:
        stage.kubeconfig = wire.kubeconfig
        stage.patience = PATIENT_S
        trouble = Trouble(stage, wire, jobs=max(JOBS, deaths), seed=seed, hostile=hostile)
        for number in range(deaths):
            if number % RESTART_EVERY == RESTART_EVERY - 1:
                trouble.restart_server()
            trouble.live_and_die(number)
        trouble.come_to_rest()
        lives = read_all(folder / "witness")
        expected = Expected(
            trouble.iterations, disturbances=tuple(trouble.disturbances), outlived=1
        )
        broken = find_broken_laws(lives, expected)
        assert not broken, broken
        trouble.tell(len(lives))
    return trouble


def main() -> None:
    options = argparse.ArgumentParser(prog="tests.operator.chaos")
    options.add_argument("--deaths", type=int, default=100)
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--hostile", type=int, default=2, help="hostile jobs at a time")
    given = options.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="dljob-chaos-"))
    programs = find_all(*PROGRAMS)
    with ControlPlane(folder / "plane", programs=programs) as plane, plane.api() as api:
        survive(
            plane,
            make_namespace(api),
            folder,
            deaths=given.deaths,
            seed=given.seed,
            hostile=given.hostile,
        )
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
