"""
The cost of a checkpoint for a training, on the disk and with ``checkpoint.memory``, by a real SideCar.

A training writes shards of 64 MiB with an ``fsync`` each, as a checkpoint has to be that a power cut must not take, and a
marker at last. It is asked for one because its GPUs change, and the next start reads it. Disk and memory are measured one
after the other, as pairs. ``pause`` is how long the training stands still, ``confirmed`` when the checkpoint is on the disk and
the change goes on, ``load`` how long the next start reads, ``speed_meanwhile`` the share of its steps that the training
does between the pause and the confirmation.

docs/decisions/0012-checkpoints-in-memory.md says what follows from it.
"""

import shutil
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import click
from _measuring import describe_machine, print_result
from _progress import run, say
from _sidecars import SideCar

JOURNAL_POLL_S = 0.1
MEMORY = Path("/dev/shm")  # noqa: S108 - it is the file system in memory
LONGEST_S = 600.0

TRAINING = """
import os, signal, sys, time
folder, shards, journal = os.environ["DLJOB_CHECKPOINT_DIR"], int(sys.argv[1]), sys.argv[2]
asked = []
signal.signal(signal.SIGUSR1, lambda *_: asked.append(True))

def tell(what, value):
    with open(journal, "a") as lines:
        lines.write("%s %.6f\\n" % (what, value))

def train(seconds):
    end, steps = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        sum(range(20000))
        steps += 1
    return steps

def save():
    content = os.urandom(64 << 20)
    began = time.monotonic()
    unit = os.path.join(folder, "step-1")
    os.mkdir(unit)
    for name in [*("shard-%d" % number for number in range(shards)), "DONE"]:
        with open(os.path.join(unit, name), "wb") as file:
            file.write(content if name != "DONE" else b"1")
            file.flush()
            os.fsync(file.fileno())
    tell("pause", time.monotonic() - began)

resume = os.environ.get("DLJOB_CHECKPOINT_RESUME")
if resume:
    signal.signal(signal.SIGUSR1, signal.SIG_DFL)  # It has nothing to save, and is not asked to.
    began = time.monotonic()
    for name in sorted(os.listdir(resume)):
        with open(os.path.join(resume, name), "rb") as file:
            while file.read(1 << 24):
                pass
    tell("load", time.monotonic() - began)
    time.sleep(1000)
tell("alone", train(1.0))
while not asked:
    time.sleep(0.001)
save()
while True:
    tell("beside", train(1.0))
"""


def measure(disk: Path, gib: int, *, in_memory: bool) -> dict[str, float]:
    """Let one training save itself and go on from there."""
    folder = Path(tempfile.mkdtemp(dir=disk))
    (folder / "saved").mkdir()
    memory = MEMORY / f"dljob-{folder.name}"
    journal = folder / "journal"
    command = [sys.executable, "-c", TRAINING, str((gib << 30) // (64 << 20)), str(journal)]
    options = {
        "checkpoint.signal": "SIGUSR1",
        "checkpoint.confirm": "file",
        "checkpoint.path": str(folder / "saved"),
        "checkpoint.complete": "marker",
        "checkpoint.files": "step-*",
        "checkpoint.marker": "DONE",
        "checkpoint.timeoutSeconds": LONGEST_S,
    }
    if in_memory:
        options["checkpoint.memory"] = f"{2 * gib * 1024 + 64}Mi"
        options["checkpoint.memoryPath"] = str(memory)
    try:
        with SideCar(folder, command, options=options) as sidecar:
            sidecar.wait_ready()
            sidecar.put(1)
            sidecar.wait_for(
                lambda _: "alone" in read(journal), "the training runs", poll_s=JOURNAL_POLL_S
            )
            sidecar.put(2)
            running = sidecar.wait_for(
                lambda _: "load" in read(journal), "the checkpoint is loaded", poll_s=JOURNAL_POLL_S
            )
            assert running.change is not None
            confirmed = running.change.checkpoint_seconds
            found = read(journal)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        shutil.rmtree(memory, ignore_errors=True)
    beside = found.get("beside", [])
    result = {"pause_s": found["pause"][0], "confirmed_s": confirmed, "load_s": found["load"][0]}
    if beside:
        result["speed_meanwhile"] = statistics.mean(beside) / found["alone"][0]
    return result


def read(journal: Path) -> dict[str, list[float]]:
    """Return all that the training has told."""
    told: dict[str, list[float]] = {}
    lines = journal.read_text(encoding="ascii").splitlines() if journal.exists() else []
    for line in lines:
        what, _, value = line.partition(" ")
        told.setdefault(what, []).append(float(value))
    return told


@click.command()
@click.option("--gib", type=click.IntRange(1), multiple=True, default=(1,), show_default=True)
@click.option("--times", type=click.IntRange(1), default=1, show_default=True)
@click.option("--disk", type=click.Path(file_okay=False, exists=True, path_type=Path), default=".")
@click.option("-o", "--output", type=click.Choice(["table", "json"]), default="table")
def main(*, gib: tuple[int, ...], times: int, disk: Path, output: str) -> None:
    """Measure checkpoints of these sizes on a disk and in memory."""
    result: dict[str, Any] = {"times": times}
    for size in gib:
        ways = {"disk": False, "memory": True}
        found: dict[str, list[dict[str, float]]] = {way: [] for way in ways}
        for turn in range(times):
            for way, in_memory in ways.items():
                say(f"{size} GiB, {way}, {turn + 1} of {times}")
                found[way].append(measure(disk, size, in_memory=in_memory))
        for way, runs in found.items():
            names = dict.fromkeys(name for run in runs for name in run)
            result[f"{size}_gib_{way}"] = {
                name: round(statistics.median(run[name] for run in runs if name in run), 2)
                for name in names
            }
    print_result({**result, **describe_machine()}, output)


if __name__ == "__main__":
    run(main)
