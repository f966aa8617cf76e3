"""
One machine in trouble: jobs come and go, and everything that can be killed is killed.

Only the GPUs are virtual; the controller, SideCars, trainings and databases are real.
"""

import math
import random
import signal
import sqlite3
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from dljob.core.model import Mechanism
from tests import endings
from tests.chaos.hostiles import Hostiles, OneMachine, is_hostile
from tests.chaos.locks import Lock
from tests.chaos.nurseries import Nursery
from tests.chaos.points import Plan
from tests.chaos.processes import (
    TRAINER,
    children,
    find_processes,
    is_held,
    kill,
    parent,
    served_job,
    trainings,
)
from tests.chaos.testimony import Disturbance, Expected, find_broken_laws, read_all
from tests.local.asking import Asker

TICK_S = 0.05
PATIENCE_S = 6.0
"""After this time a controller is killed wherever it is."""
SHORTEST_LIFE_S = 0.5
SPARED_POINTS = (0, 30, 60, 120, 240)
REMOVING = ("remove", "kill")
"""The actions against a SideCar that has not answered for longer than ``lost_seconds``."""
REMOVAL_S = 60.0
"""The longest time until a controller takes them."""
LEAVING_S = 240.0
EVALUATIONS = (0.0, 1.0, 3.0, 6.0)
"""Seconds that a training may take after its last step."""
SUSPENDS, SUSPENDS_LATE, RESUMES = 0.002, 0.1, 0.03
"""The probabilities of a suspension and a resumption at each look."""
UNAVAILABLE = 503
KILLED_FROM_OUTSIDE = "anywhere, from outside"
LAST_LINES = 60


@dataclass(frozen=True)
class Trouble:
    """The amount and kinds of disturbances."""

    seed: int
    kills: int
    """The number of controllers that die before the quiet end."""
    jobs: int = 8
    """Jobs at a time; while controllers die, each job that ends is replaced."""
    mechanism: Mechanism = Mechanism.IN_PLACE
    has_namespaces: bool = True
    least_seconds: float = 15.0
    most_seconds: float = 45.0
    """The time of a job on one GPU."""
    acts: Sequence[str] = ()
    """Controllers die around these acts in turn, and nothing else is disturbed; empty: anywhere."""
    ending: float = 0.5
    """The share of jobs that end once they have saved, without waiting for their end."""
    patience: float = 1.0
    """A factor on the controllers' limits for SideCars, for slow machines."""
    freezes: int = 0
    """How often a SideCar is frozen, until a controller that lives long enough removes it, and dies at that."""
    limit_seconds: float = 240.0
    """The limit of the whole run."""
    hostile: int = 0
    """Hostile jobs at a time, in addition."""


@dataclass
class Story:
    """The events of a run."""

    deaths: Counter[str] = field(default_factory=Counter)
    """Of controllers, by kind of point."""
    disturbances: list[Disturbance] = field(default_factory=list)
    others: Counter[str] = field(default_factory=Counter)
    """The other disturbances."""
    iterations: dict[str, int] = field(default_factory=dict)
    given_up: set[str] = field(default_factory=set)

    def expected(self) -> Expected:
        return Expected(self.iterations, frozenset(self.given_up), tuple(self.disturbances))


class World:
    """A state folder with everything that happens to it."""

    def __init__(self, root: Path, trouble: Trouble) -> None:
        self.root = root
        self.state = root / "state"
        self.witness = root / "witness"
        self.witness.mkdir()
        self.trouble = trouble
        self.story = Story()
        self._chance = random.Random(trouble.seed)
        self._nursery = Nursery()
        self._ask = Asker(self.state / "run" / "dljob.sock")
        self.hostiles = Hostiles(
            OneMachine(root, self._try), at_once=trouble.hostile, seed=trouble.seed
        )
        self._deaths = root / "death"
        self._unsent: list[dict[str, Any]] = []
        self._jobs: dict[str, str] = {}
        """The last seen phases."""
        self._suspended: set[str] = set()
        self._next_trouble = time.monotonic() + 2.0
        self._lock: Lock | None = None
        self._end = time.monotonic() + trouble.limit_seconds
        self._unsent += [self._new_job() for _ in range(trouble.jobs)]

    # --- the run

    def run(self) -> None:
        """Let controllers die, and then let everything end."""
        while (deaths := self.story.deaths.total()) < self.trouble.kills:
            due = self.trouble.freezes * (deaths + 1) // self.trouble.kills
            if self.story.others["froze a SideCar"] < due:
                self._live_until_a_removal()
            else:
                self._live_and_die()
        self._release()
        self._be_calm()

    def verify(self) -> None:
        """Check all laws at the end."""
        broken = find_broken_laws(read_all(self.witness), self.story.expected())
        broken += [f"{pid} was left: {command}" for pid, command in self._find_left()]
        broken += [f"{path.name} is held by a SideCar" for path in self._held_locks()]
        assert not broken, "\n".join([*broken, f"all is in {self.root}"])

    def _find_left(self) -> list[tuple[int, str]]:
        """Processes that do not end; a SideCar ends a moment after its last report."""
        until = time.monotonic() + LEAVING_S
        while (left := find_processes(self.root)) and time.monotonic() < until:
            time.sleep(TICK_S)
        return left

    def close(self) -> None:
        """Clean up, even after a failure."""
        if self._lock is not None:
            self._lock.release()
        self._nursery.close()
        endings.kill_all(lambda: [pid for pid, _ in find_processes(self.root)])

    # --- controllers

    def _live_and_die(self) -> None:
        if self.trouble.acts:
            act = self.trouble.acts[self.story.deaths.total() % len(self.trouble.acts)]
            self._bear(Plan(seed=self._chance.getrandbits(32), only=(act,)))
            self._await_death(PATIENCE_S, lambda: None)
            return
        is_repeated = self._chance.random() < 0.15
        plan = Plan(
            seed=self._chance.getrandbits(32),
            deaths=dict(self.story.deaths),
            at_point=self._chance.randint(1, 25) if is_repeated else 0,
            spares=0 if is_repeated else self._chance.choice(SPARED_POINTS),
        )
        self._bear(plan)
        self._await_death(self._chance.uniform(SHORTEST_LIFE_S, PATIENCE_S), self._make_trouble)

    def _live_until_a_removal(self) -> None:
        """Run a controller until it removes a SideCar, and dies at that."""
        self._bear(Plan(seed=self._chance.getrandbits(32), only=REMOVING))
        frozen = self.story.others["froze a SideCar"]

        def freeze() -> None:
            if self.story.others["froze a SideCar"] == frozen:
                self._disturb("froze a SideCar", self._sidecars(), signal.SIGSTOP)

        self._await_death(REMOVAL_S, freeze)

    def _last_words(self) -> str:
        log = Path(f"{self.state}.log").read_text(encoding="utf-8", errors="replace")
        return "\n".join(log.splitlines()[-LAST_LINES:])

    def _await_death(self, seconds: float, make_trouble: Callable[[], None]) -> None:
        """
        Wait for the controller's death; kill it after ``seconds``.

        They count from its first answer, because its start takes long on a busy machine.
        """
        until = math.inf
        while (status := self._nursery.wait(TICK_S)) is None:
            make_trouble()
            if self._keep_jobs_coming():
                until = min(until, time.monotonic() + seconds)
            self._insist_on_time()
            if time.monotonic() > until:
                self._nursery.end()
        assert status == -signal.SIGKILL, f"it ended by itself ({status}): {self._last_words()}"
        died_at = self._deaths.read_text() if self._deaths.exists() else KILLED_FROM_OUTSIDE
        self.story.deaths[died_at] += 1
        self._deaths.unlink(missing_ok=True)

    def _bear(self, plan: Plan) -> None:
        self._nursery.bear(
            state=str(self.state),
            deaths=str(self._deaths),
            plan=asdict(plan),
            mechanism=self.trouble.mechanism.value,
            has_namespaces=self.trouble.has_namespaces,
            patience=self.trouble.patience,
        )

    def _be_calm(self) -> None:
        """Run one undisturbed controller until all is done and cleaned up."""
        self._bear(Plan(seed=0, is_calm=True))
        while not self._all_is_done():
            status = self._nursery.wait(4 * TICK_S)
            assert status is None, f"it ended by itself ({status}); see {self.state}.log"
            self._send()
            self._look()
            for job in list(self._suspended):
                self._suspend(job, suspended=False)
            self.hostiles.leave()
            self._insist_on_time()
        self._nursery.end(signal.SIGTERM)
        assert self._nursery.wait(240.0) == 0

    def _all_is_done(self) -> bool:
        if self._unsent or not self._look() or not self.hostiles.leave():
            return False
        assert "Failed" not in self._jobs.values(), self._jobs
        return all(phase == "Completed" for phase in self._jobs.values()) and not (
            self._held_locks() or self._sockets() or trainings(self.root)
        )

    def _insist_on_time(self) -> None:
        if time.monotonic() > self._end:
            raise TimeoutError(f"{self._jobs} after {self.story}; all is in {self.root}")

    # --- jobs

    def _keep_jobs_coming(self) -> bool:
        """Replace each job that ends; return whether a controller answers."""
        self._send()
        if not self._look():
            return False
        active = [job for job, phase in self._jobs.items() if phase not in ("Completed", "Failed")]
        if len(active) + len(self._unsent) < self.trouble.jobs:
            self._unsent.append(self._new_job())
        self.hostiles.go_on()
        running = [job for job, phase in self._jobs.items() if phase == "Running"]
        if running and self._chance.random() < 0.001:
            self._give_up(self._chance.choice(running))
        if not self.trouble.acts:
            self._suspend_some(running)
        return True

    def _suspend_some(self, running: Sequence[str]) -> None:
        """Suspend and resume jobs now and then, preferably after their last step."""
        for job in list(self._suspended):
            if self._chance.random() < RESUMES:
                self._suspend(job, suspended=False)
        for job in running:
            is_late = has_taken_its_last_step(self.root, job, self.story.iterations[job])
            if self._chance.random() < (SUSPENDS_LATE if is_late else SUSPENDS):
                self._suspend(job, suspended=True)
                self.story.others["suspended a job after its last step"] += is_late

    def _suspend(self, job: str, *, suspended: bool) -> None:
        found = self._try("GET", f"/v1/jobs/{job}")
        if found is None or found.status != 200:
            if found is not None:
                self._suspended.discard(job)  # It was forgotten.
            return
        document = {**found.json, "spec": {**found.json["spec"], "suspend": suspended}}
        answer = self._try("PUT", f"/v1/jobs/{job}", document)
        # The request may have arrived without an answer.
        self._suspended.add(job)
        if answer is not None and not suspended:
            self._suspended.discard(job)
        self.story.others["suspended a job"] += suspended

    def _new_job(self) -> dict[str, Any]:
        name = f"job-{len(self.story.iterations)}"
        seconds = self._chance.uniform(self.trouble.least_seconds, self.trouble.most_seconds)
        self.story.iterations[name] = int(seconds / 0.04)
        return job_document(
            name,
            self.root,
            iterations=self.story.iterations[name],
            ends_when_saved=self._chance.random() < self.trouble.ending,
            is_forgotten=self._chance.random() < 0.3,
            evaluates=self._chance.choice(EVALUATIONS),
            options=self._chance.choice([[1, 2, 4], [1, 2], [1, 2, 4, 8], [2, 4]]),
        )

    def _send(self) -> None:
        """Submit waiting jobs; their names show later whether they arrived before a crash."""
        for document in list(self._unsent):
            answer = self._try("POST", "/v1/jobs", {"kind": "DLJobList", "items": [document]})
            if answer is None:
                return
            assert answer.status == 201 or b"is a job already" in answer.body, answer
            self._unsent.remove(document)
            self._jobs[document["metadata"]["name"]] = "Queued"

    def _give_up(self, job: str) -> None:
        # Cancelled as soon as the request may have arrived.
        self.story.given_up.add(job)
        answer = self._try("DELETE", f"/v1/jobs/{job}")
        if answer is not None:
            assert answer.status in (200, 202, 204, 404), answer
            self.story.others["cancelled a job"] += 1

    def _look(self) -> bool:
        """Update the phases of the jobs, if a controller answers."""
        answer = self._try("GET", "/v1/jobs")
        if answer is None or answer.status != 200:
            return False
        seen = {
            each["metadata"]["name"]: each.get("status", {}).get("phase", "Queued")
            for each in answer.json["items"]
            if not is_hostile(each["metadata"]["name"])
        }
        for job in self._jobs.keys() - seen.keys():
            # The job was forgotten after its end or its cancellation.
            self._jobs[job] = "Completed"
        self._jobs.update(seen)
        return True

    def _try(self, method: str, target: str, body: Any = None) -> Any:
        try:
            answer = self._ask(method, target, body)
        except Exception as error:
            if not isinstance(error, OSError | ValueError) and "http" not in type(error).__module__:
                raise
            return None
        # Our lock on the list of jobs lasted too long: the request is repeated.
        return None if answer.status == UNAVAILABLE else answer

    # --- trouble

    def _make_trouble(self) -> None:
        now = time.monotonic()
        if now < self._next_trouble:
            return
        self._next_trouble = now + self._chance.uniform(0.5, 4.0)
        acts: Sequence[Callable[[], None]] = (
            self._kill_training,
            self._kill_sidecar,
            self._kill_keeper,
            self._lock_store,
            self._lock_jobs,
        )
        self._chance.choice(acts)()

    def _kill_training(self) -> None:
        self._disturb("killed a training", list(trainings(self.root).items()))

    def _kill_sidecar(self) -> None:
        self._disturb("killed a SideCar", self._sidecars())

    def _kill_keeper(self) -> None:
        self._disturb("killed a keeper", self._keepers())

    def _sidecars(self) -> list[tuple[int, str]]:
        return [(child, job) for keeper, job in self._keepers() for child in children(keeper)]

    def _disturb(
        self, what: str, found: Sequence[tuple[int, str]], signum: int = signal.SIGKILL
    ) -> None:
        if found:
            pid, job = self._chance.choice(found)
            self.story.others[what] += 1
            # On a busy machine the job may have restarted between the choice and the kill.
            self.story.disturbances.append(Disturbance(job, time.monotonic()))
            kill(pid, signum)
            self.story.disturbances.append(Disturbance(job, time.monotonic()))

    def _keepers(self) -> list[tuple[int, str]]:
        """The first processes of SideCars, with their jobs."""
        sidecars = {
            pid: command for pid, command in find_processes(self.root) if "--socket=" in command
        }
        jobs = {pid: served_job(command) for pid, command in sidecars.items()}
        return [(pid, jobs[pid]) for pid in sidecars if parent(pid) not in sidecars]

    def _lock_store(self) -> None:
        self._lock_file("profiles.db", "locked the store")

    def _lock_jobs(self) -> None:
        self._lock_file("jobs.db", "locked the list of jobs")

    def _lock_file(self, name: str, what: str) -> None:
        is_locked = self._lock is not None and not self._lock.is_over
        if is_locked or not (self.state / name).exists():
            return
        with suppress(sqlite3.Error):
            self._lock = Lock(self.state / name, self._chance.uniform(0.2, 3.0))
            self.story.others[what] += 1

    def _release(self) -> None:
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def _sockets(self) -> list[Path]:
        """The sockets of SideCars; a killed one leaves its socket until the next one has proven its end."""
        return [path for path in (self.state / "run").glob("*.sock") if path.name != "dljob.sock"]

    def _held_locks(self) -> list[Path]:
        return [path for path in (self.state / "run").glob("*.sock.lock") if is_held(path)]


def has_taken_its_last_step(root: Path, job: str, iterations: int) -> bool:
    saved = root / "jobs" / job / "checkpoint" / "iteration"
    return saved.exists() and int(saved.read_text()) == iterations


def job_document(
    name: str,
    root: Path,
    *,
    iterations: int,
    ends_when_saved: bool,
    is_forgotten: bool,
    options: Sequence[int],
    evaluates: float = 0.0,
    program: Sequence[str] = (sys.executable, "-S", "-E", str(TRAINER)),
) -> dict[str, Any]:
    """A job that logs for the checker, with unlimited retries."""
    command = [
        *(*program, f"--job={name}"),
        *(f"--folder={root / 'jobs' / name}", f"--witness={root / 'witness'}"),
        *(f"--iterations={iterations}", f"--evaluates={evaluates}"),
        *(["--ends-when-saved"] if ends_when_saved else []),
    ]
    path = root / "jobs" / name / "checkpoint"
    by_file = {"confirm": "file", "complete": "rename", "path": str(path)}
    # Processes of other ranks confirm by a renamed file, too.
    confirm = {"confirm": "exit", "to": "all"} if ends_when_saved else by_file | {"to": "leader"}
    return {
        "apiVersion": "dljob.io/v1alpha1",
        "kind": "DLJob",
        "metadata": {"name": name},
        "spec": {
            "gpus": {"options": list(options)},
            "framework": "pytorch",
            "processes": "perNode",
            "training": {"iterations": iterations},
            "progress": {"log": r"step (?P<iteration>\d+)"},
            "checkpoint": {"signal": "SIGUSR1", "shared": True, **confirm},
            "backoffLimit": 1000,
            **({"ttlSecondsAfterFinished": 1} if is_forgotten else {}),
            "template": {"spec": {"containers": [{"name": "trainer", "command": command}]}},
        },
    }


@contextmanager
def in_trouble(root: Path, trouble: Trouble) -> Iterator[World]:
    world = World(root, trouble)
    try:
        yield world
    finally:
        world.close()
