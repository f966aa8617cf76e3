"""
An hour of three real users on one machine, for shares.py: ``dljob up --system``, and trainings that save and go on.

The GPUs are virtual, and a training takes its time as on real ones (examples/replay), with 0.8 of the speed for each doubling.
"""

import csv
import shutil
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from _progress import ROOT, CannotRun, say, wait_until

from dljob.client.backend import Away
from dljob.client.local.local_backend import LocalBackend
from dljob.core.recording.record import Record
from dljob.local.folders import Folders
from tests.local.ups import kill_all
from tests.local.users import SCRIPT, User, find_python, made

GPUS = 8
STEPS_A_SECOND = 2.0
SCALING = {1: 1.0, 2: 1.6, 4: 2.56}
COLUMNS = ("gpu_type", "model", "global_batch_size", "num_gpus", "iterations_per_s")
LOOK_S = 10.0


class Hour(NamedTuple):
    record: Record
    users: Mapping[str, str]
    """The users of the jobs, by their names on this machine."""
    began: float


def live_through(
    jobs: Sequence[Sequence[Any]], weights: Mapping[str, int], *, seconds: float, policy: str
) -> Hour:
    """Let jobs (name, submission, seconds, GPUs) of users train for so long, from when all are submitted."""
    with tempfile.TemporaryDirectory(prefix="dls-") as name, ExitStack() as stack:
        folder = Path(name)
        folder.chmod(0o755)
        python = find_python(folder)
        users = stack.enter_context(made(folder / "s", python, *weights))
        shares = {own.name: part for own, part in zip(users, weights.values(), strict=True)}
        ask = stack.enter_context(serving(folder, python, shares, policy=policy))
        make = partial(make_job, *lay_out(folder), python=python)
        names = {own.name: user for own, user in zip(users, weights, strict=True)}
        for own in users:
            mine = [job for job in jobs if job[0].startswith(f"{names[own.name]}/")]
            submit(own, [make(*job) for job in mine])
        began = time.time()
        watch(ask, seconds)
        return Hour(ask.read_record(0.0), names, began)


def watch(ask: LocalBackend, seconds: float) -> None:
    began = time.monotonic()
    while (past := time.monotonic() - began) < seconds:
        held: Counter[str] = Counter()
        for job in ask.list_jobs().items:
            gpus = job["status"].get("allocation", {}).get("gpus", 0)
            held[job["metadata"]["namespace"].partition("-")[0]] += gpus
        say(f"{past:.0f} of {seconds:.0f} s: GPUs {dict(held)}")
        time.sleep(min(LOOK_S, seconds - past))


def submit(user: User, documents: Sequence[Mapping[str, Any]]) -> None:
    file = user.home / "jobs.yaml"
    file.write_text(yaml.safe_dump_all(documents))
    submitted = user("submit", file)
    if submitted.status:
        raise CannotRun(submitted.stderr)


@contextmanager
def serving(
    folder: Path, python: Path, shares: Mapping[str, int], *, policy: str
) -> Iterator[LocalBackend]:
    state, config = folder / "s", folder / "settings.yaml"
    config.write_text(yaml.safe_dump({"limits": {"shares": dict(shares)}}))
    options = ("--state", state, "--config", config, "--policy", policy)
    words = ("up", "--system", "--virtual-gpus", GPUS, *options)
    backend = LocalBackend(Folders(state).socket)

    def answers() -> bool:
        with suppress(Away):
            return bool(backend.about())
        return False

    with (folder / "log").open("ab") as log:
        command = [str(each) for each in (python, "-c", SCRIPT, *words)]
        server = subprocess.Popen(command, stdout=log, stderr=log, cwd="/")
    try:
        wait_until(answers, "the server answers")
        yield backend
    finally:
        server.kill()
        server.wait()
        kill_all(state)


def lay_out(folder: Path) -> tuple[Path, Path]:
    """Write the program and the table of its speeds where all users can read them."""
    program, speeds = folder / "train.py", folder / "speeds.csv"
    shutil.copy(ROOT / "examples" / "replay" / "train.py", program)
    with speeds.open("w", encoding="utf-8", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(COLUMNS)
        rows.writerows(("A100", "hour", 1, n, STEPS_A_SECOND * part) for n, part in SCALING.items())
    for each in (program, speeds):
        each.chmod(0o644)
    return program, speeds


def make_job(
    program: Path, speeds: Path, name: str, _at: float, seconds: float, gpus: int, *, python: Path
) -> Mapping[str, Any]:
    iterations = round(seconds * STEPS_A_SECOND * SCALING[gpus])
    folder = "$(DLJOB_CHECKPOINT_DIR)"
    command: list[object] = [python, "-S", program, "--speeds", speeds, "--model", "hour"]
    command += ["--batch", 1, "--iterations", iterations, "--checkpoint", f"{folder}/iteration"]
    trainer = {"name": "trainer", "command": [str(each) for each in command]}
    kept = {"signal": "SIGUSR1", "confirm": "file", "complete": "rename", "path": folder}
    return {
        "apiVersion": "dljob.io/v1alpha1",
        "kind": "DLJob",
        "metadata": {"name": f"hour-{name.partition('/')[2]}"},
        "spec": {
            "gpus": {"options": [each for each in SCALING if each <= gpus]},
            "framework": "none",
            "training": {"iterations": iterations, "batchSize": 1},
            "progress": {"log": r"step (?P<iteration>\d+)"},
            "checkpoint": {**kept, "shared": True},
            "template": {"spec": {"containers": [trainer]}},
        },
    }
