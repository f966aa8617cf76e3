"""
Coach's job handler for pods of one job: each epoch it chooses workers and servers, requests pods, and trains on what it got.

:mod:`coach` runs three of them at a time. The pods are objects that a scheduler binds to nodes without kubelets; what
would run in them runs here, a process for each worker and server, with ``examples/roles/train.py``. As with Coach's
functions, which stay deployed, an epoch does not begin with the start of an interpreter: processes are forks of one.
"""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path

from _progress import ROOT

from dljob_lab import marginal_utility
from dljob_lab.marginal_utility import Sample
from dljob_lab.roles import Split, list_mini_epochs
from tests.servers.api import Api, Json
from tests.servers.ports import choose_ports

TRAINING = ROOT / "examples" / "roles" / "train.py"
FORKING = """
import json, os, runpy, sys
import numpy

for line in sys.stdin:
    told, children = json.loads(line), []
    for environment, log in told["ranks"]:
        children.append(os.fork())
        if not children[-1]:
            os.environ.update(environment)
            os.dup2(os.open(log, os.O_CREAT | os.O_WRONLY | os.O_TRUNC), 1)
            sys.argv = told["words"]
            runpy.run_path(sys.argv[0], run_name="__main__")
            sys.stdout.flush()
            os._exit(0)
    print(json.dumps([os.waitpid(child, 0)[1] for child in children]), flush=True)
"""
LOSS = re.compile(r"loss=([\d.]+)")
GANG, ROLE, ROLES = "dljob.io/gang", "dljob.io/gang-role", "dljob.io/gang-roles"
LEAST = {"scheduler": 1, "worker": 1, "server": 1}
"""No epoch starts without one of each (section 3.2)."""
SPLITS = [Split(*each) for each in product((1, 2), repeat=2)]
LOOK_S = 0.1


@dataclass(frozen=True)
class Task:
    """What each of the jobs trains, the same for all (section 5)."""

    steps: int
    """Of an epoch; a mini-epoch has a half of them."""
    sample_s: float
    gradient_s: float
    target: float
    """The loss that three epochs in a row reach."""
    patience_s: float
    """After that an epoch begins with what is there, if each role is (section 4.1)."""


@dataclass(frozen=True)
class Epoch:
    """An epoch that was made."""

    wanted: Split
    had: Split
    seconds: float
    waited: float
    is_mini: bool

    @property
    def straggles(self) -> bool:
        """Return whether it had fewer pods than were requested for it."""
        return self.had != self.wanted


class Stopped(Exception):
    """The run has ended before the job."""


@dataclass(eq=False)
class Handler:
    """One job from its first pod to its target, in a thread of its own."""

    name: str
    api: Api
    namespace: str
    scheduler: str
    selector: dict[str, str]
    slots: int
    task: Task
    folder: Path
    stops: threading.Event
    forker: "subprocess.Popen[str]"
    epochs: list[Epoch] = field(default_factory=list)
    steps: int = 0
    moved_at: float = field(default_factory=time.monotonic)
    """When a pod of it was bound last, an epoch ended, or it released its pods."""
    waits: bool = False
    done_at: float | None = None
    error: BaseException | None = None

    def run(self) -> None:
        """Tune, and train until the target is reached."""
        try:
            for split in list_mini_epochs(SPLITS):
                self._make_epoch(split, self.task.steps // 2, is_mini=True)
            reached = 0
            while reached < 3:
                loss = self._make_epoch(self._choose(), self.task.steps)
                reached = reached + 1 if loss <= self.task.target else 0
            self._request(Split(0, 0))
            self.moved_at = self.done_at = time.monotonic()
        except Stopped:
            pass
        except BaseException as error:  # noqa: BLE001 - the main thread raises it
            self.error = error

    def _choose(self) -> Split:
        """Choose by marginal utility among what is free: steps 5 and 6 of Figure 1."""
        history = [
            Sample(*each.had, (0.5 if each.is_mini else 1.0) / each.seconds) for each in self.epochs
        ]
        utility = marginal_utility.fit(history)
        there = self.api.get(self._path())["items"]
        others = sum(
            pod["metadata"]["labels"][GANG] != self.name and "nodeName" in pod["spec"]
            for pod in there
        )
        fitting = [each for each in SPLITS if sum(each) + 1 + others <= self.slots]
        return marginal_utility.choose(utility, fitting or SPLITS[:1])

    # --- pods

    def _path(self, name: str = "") -> str:
        base = f"/api/v1/namespaces/{self.namespace}/pods"
        return f"{base}/{name}" if name else base

    def _list(self) -> dict[str, bool]:
        """Map the pods of the job to whether they are bound."""
        items = self.api.get(self._path(), labelSelector=f"{GANG}={self.name}")["items"]
        return {pod["metadata"]["name"]: "nodeName" in pod["spec"] for pod in items}

    def _request(self, wanted: Split) -> None:
        """Delete superfluous pods, and create those that are missing, all roles at once."""
        counts = {
            "scheduler": min(1, wanted.workers),
            "worker": wanted.workers,
            "server": wanted.servers,
        }
        names = {
            f"{self.name}-{role}-{number}": role
            for role, count in counts.items()
            for number in range(count)
        }
        there = self._list()
        for name in there.keys() - names.keys():
            self.api.delete(self._path(name), gracePeriodSeconds=0)
        for name, role in names.items():
            if name not in there:
                self.api.post(self._path(), self._make_pod(name, role))

    def _make_pod(self, name: str, role: str) -> Json:
        container = {"name": "main", "image": "x", "resources": {"requests": {"cpu": "1"}}}
        return {
            "metadata": {
                "name": name,
                "labels": {GANG: self.name, ROLE: role},
                "annotations": {ROLES: json.dumps(LEAST)},
            },
            "spec": {
                "schedulerName": self.scheduler,
                "nodeSelector": self.selector,
                "terminationGracePeriodSeconds": 0,
                "containers": [container],
            },
        }

    def _wait(self, wanted: Split) -> Split:
        """Return the workers and servers that an epoch can begin with."""
        since, before = time.monotonic(), 0
        self.waits = True
        while not self.stops.is_set():
            bound = [name.split("-")[-2] for name, is_bound in self._list().items() if is_bound]
            if len(bound) > before:
                before, self.moved_at = len(bound), time.monotonic()
            had = Split(bound.count("worker"), bound.count("server"))
            is_late = time.monotonic() - since > self.task.patience_s
            if "scheduler" in bound and (had == wanted or (is_late and min(had) > 0)):
                self.waits = False
                return had
            time.sleep(LOOK_S)
        raise Stopped

    # --- training

    def _make_epoch(self, wanted: Split, steps: int, *, is_mini: bool = False) -> float:
        """Make an epoch with these workers and servers, or with fewer; return its loss."""
        self._request(wanted)
        asked_at = time.monotonic()
        had = self._wait(wanted)
        began = time.monotonic()
        self.steps += steps
        loss = self._train(had)
        now = self.moved_at = time.monotonic()
        self.epochs.append(Epoch(wanted, had, now - began, began - asked_at, is_mini))
        return loss

    def _train(self, had: Split) -> float:
        [port] = choose_ports(1)
        words = [
            *(str(TRAINING), f"--iterations={self.steps}"),
            *("--gpus-per-worker=1", f"--servers={had.servers}", f"--checkpoints={self.folder}"),
            f"--sample-seconds={self.task.sample_s}",
            f"--gradient-seconds={self.task.gradient_s}",
        ]
        where = {"WORLD_SIZE": str(sum(had)), "MASTER_PORT": str(port)}
        ranks = [
            ({**where, "RANK": str(rank)}, f"{self.folder}-{rank}.log") for rank in range(sum(had))
        ]
        to, back = self.forker.stdin, self.forker.stdout
        assert to is not None
        assert back is not None
        print(json.dumps({"words": words, "ranks": ranks}), file=to, flush=True)
        answer = back.readline()
        if not answer or any(json.loads(answer)):
            raise RuntimeError(f"a process of {self.name} has failed")
        log = Path(f"{self.folder}-0.log").read_text(encoding="utf-8")
        return float(LOSS.findall(log)[-1])


@contextmanager
def forking() -> Iterator["subprocess.Popen[str]"]:
    """Yield a process that forks the workers and servers of one job."""
    process = subprocess.Popen(
        [sys.executable, "-c", FORKING],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
        start_new_session=True,
    )
    try:
        yield process
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
