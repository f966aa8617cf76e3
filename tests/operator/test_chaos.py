"""
Operators die around their writes and commands, trainings and SideCars with them, and all jobs finish.

The witness is that of the one-machine chaos: each training process tells what it had, and holds a lock
for each of its GPUs; what it told is read by a checker that knows nothing of operators.
"""

import json
import random
import sys
import time
from collections import Counter
from dataclasses import asdict

import pytest

from tests.chaos.points import Plan
from tests.chaos.processes import kill, trainings
from tests.chaos.testimony import Disturbance, Expected, find_broken_laws, read_all
from tests.chaos.worlds import job_document
from tests.operator.stages import LEADS, PATIENCE_S, Stage, staged
from tests.servers.processes import Server

pytestmark = [pytest.mark.cluster, pytest.mark.processes, pytest.mark.slow]

DEATHS = 20
JOBS = 20
AT_A_TIME = 6
LIFE_S = 15.0
"""Who has led for that time, and come to no deadly point, is killed wherever it is."""
QUICK = {
    "lease.leaseSeconds": 2,
    "lease.renewSeconds": 0.5,
    "lease.giveUpSeconds": 1.5,
    "lease.lookSeconds": 0.2,
    "rules.retrySeconds": 0.2,
    "rules.longestRetrySeconds": 1,
    "rules.lostSeconds": 10,
    "pace.periodSeconds": 2,
    "dialing.waitSeconds": 2,
    "dialing.longestPauseSeconds": 0.5,
    "dialing.refusedPauseSeconds": 0.5,
}


class Trouble:
    """What happens to a stage."""

    def __init__(self, stage: Stage, seed: int) -> None:
        self.stage = stage
        self.chance = random.Random(seed)
        self.deaths: Counter[str] = Counter()
        self.disturbances: list[Disturbance] = []
        self.iterations: dict[str, int] = {}
        (stage.folder / "witness").mkdir()

    def submit_some(self) -> None:
        """Keep jobs coming until all have come."""
        active = [
            each
            for each in self.stage.api.get(self.stage.path())["items"]
            if each.get("status", {}).get("phase") not in ("Completed", "Failed")
        ]
        while len(self.iterations) < JOBS and len(active) < AT_A_TIME:
            name = f"job-{len(self.iterations)}"
            self.iterations[name] = int(self.chance.uniform(3.0, 9.0) / 0.04)
            document = job_document(
                name,
                self.stage.folder,
                iterations=self.iterations[name],
                ends_when_saved=self.chance.random() < 0.5,
                is_forgotten=False,
                options=self.chance.choice([[1, 2, 4], [1, 2], [1, 2, 4, 8], [2, 4]]),
            )
            document["spec"]["template"]["spec"]["containers"][0]["image"] = "training"
            active.append(self.stage.api.post(self.stage.path(), document))

    def live_and_die(self, number: int) -> None:
        """Let an operator live until it dies at a point, or is killed from outside."""
        plan = Plan(
            seed=self.chance.getrandbits(32),
            deaths=dict(self.deaths),
            spares=self.chance.choice((0, 10, 30, 80)),
        )
        told = self.stage.folder / f"death-{number}"
        operator = self.start(plan, told)
        # How long it takes to begin is the machine's affair.
        end = time.monotonic() + PATIENCE_S
        is_leading = False
        while operator.is_running and time.monotonic() < end:
            self.submit_some()
            self.disturb(0.02)
            if not is_leading and LEADS in operator.last_words():
                is_leading = True
                end = time.monotonic() + LIFE_S
            time.sleep(0.1)
        is_by_itself = not operator.is_running
        operator.kill()
        assert not is_by_itself or told.exists(), operator.last_words()
        self.deaths[told.read_text() if told.exists() else "from outside"] += 1

    def start(self, plan: Plan, told: object) -> Server:
        words = [
            sys.executable,
            "-m",
            "tests.operator.mortals",
            json.dumps(asdict(plan)),
            str(told),
        ]
        return self.stage.start_operator(program=[*words, "--"], launches=True, settings=QUICK)

    def disturb(self, likelihood: float) -> None:
        """Kill a training, or a SideCar."""
        if self.chance.random() > likelihood:
            return
        found = [*trainings(self.stage.folder).items()]
        if self.chance.random() < 0.5:
            pods = self.stage.kubelets.pids().items()
            found = [(pid, pod.rpartition("-")[0]) for pod, pid in pods]
        if found:
            pid, job = self.chance.choice(found)
            self.disturbances.append(Disturbance(job, time.monotonic()))
            kill(pid)

    def come_to_rest(self) -> None:
        """With an operator that lives, everything comes to its end."""
        self.start(Plan(seed=0, is_calm=True), self.stage.folder / "calm")

        def all_have_come() -> bool:
            self.submit_some()
            return len(self.iterations) == JOBS

        self.stage.wait(all_have_come)
        for name in self.iterations:
            self.stage.wait_for_phase(name, "Completed")
        self.stage.wait(lambda: not trainings(self.stage.folder))

    def tell(self, starts: int) -> None:
        """Say what has happened, for whoever runs this with ``-s``."""
        points = ", ".join(f"{kind} {times}" for kind, times in self.deaths.most_common())
        sys.stdout.write(
            f"\n{sum(self.deaths.values())} operators died: {points}\n{starts} starts of"
            f" {len(self.iterations)} jobs, disturbed {len(self.disturbances)} times\n"
        )


@pytest.mark.timeout(900)
def test_jobs_finish_whichever_operator_dies_and_no_gpu_has_two_masters(
    control_plane, namespace, tmp_path
):
    with staged(control_plane, namespace, tmp_path, {"gpu-a": 4, "gpu-b": 4}) as stage:
        trouble = Trouble(stage, seed=6)
        for number in range(DEATHS):
            trouble.live_and_die(number)
        trouble.come_to_rest()
        lives = read_all(tmp_path / "witness")
        expected = Expected(trouble.iterations, disturbances=tuple(trouble.disturbances))
        assert find_broken_laws(lives, expected) == []
        trouble.tell(len(lives))
        assert len(trouble.deaths) >= 8, "they died at too few kinds of points"
