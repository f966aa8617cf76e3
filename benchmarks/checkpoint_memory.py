"""
What a checkpoint costs a training on the disk, and what it would cost in memory that is written out later.

Shards of 64 MiB are written as trainings write them, with an ``fsync`` each, as a checkpoint has to be that a
power cut must not take. ``pause`` is how long the training stands still, ``safe`` when the checkpoint is on the
disk, ``load`` how long a start reads: from the disk after the kernel has forgotten the files, as on another node or
long after, and while it remembers them. In memory the pause is the copy into a file system in memory, and the
copy from there to the disk goes on beside the training, whose speed meanwhile is ``speed_while_written_out``.

docs/decisions/0012-checkpoints-in-memory.md says what follows from it.
"""

import contextlib
import multiprocessing
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator
from multiprocessing.sharedctypes import Synchronized
from pathlib import Path
from typing import Any

import click
from _measuring import describe_machine, print_result

SHARD_BYTES = 64 << 20
BLOCK_BYTES = 1 << 24
MEMORY = Path("/dev/shm")  # noqa: S108 - it is the file system in memory
SPEED_SECONDS = 1.0


def save(folder: Path, shards: int, *, is_synced: bool) -> float:
    """Write a checkpoint as a training does, and return how long that took."""
    shard = os.urandom(SHARD_BYTES)
    began = time.monotonic()
    folder.mkdir()
    for number in range(shards):
        with (folder / f"shard-{number}").open("wb") as file:
            file.write(shard)
            if is_synced:
                file.flush()
                os.fsync(file.fileno())
    return time.monotonic() - began


def write_out(source: Path, target: Path) -> float:
    """Copy a checkpoint from memory to the disk, and return how long that took."""
    began = time.monotonic()
    target.mkdir()
    for shard in sorted(source.iterdir()):
        with shard.open("rb") as file, (target / shard.name).open("wb") as copy:
            while os.sendfile(copy.fileno(), file.fileno(), None, BLOCK_BYTES):
                pass
            os.fsync(copy.fileno())
    return time.monotonic() - began


def load(folder: Path, *, is_forgotten: bool = False) -> float:
    """Read a checkpoint as a start does, and return how long that took."""
    if is_forgotten:
        for shard in folder.iterdir():
            with shard.open("rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    began = time.monotonic()
    for shard in sorted(folder.iterdir()):
        shard.read_bytes()
    return time.monotonic() - began


def train(steps: "Synchronized[int]") -> None:
    """Compute, as a training that goes on meanwhile."""
    while True:
        sum(range(20_000))
        steps.value += 1


@contextlib.contextmanager
def training() -> Iterator["Synchronized[int]"]:
    """Let a training run beside what is measured."""
    steps = multiprocessing.Value("q", 0)
    process = multiprocessing.Process(target=train, args=(steps,), daemon=True)
    process.start()
    try:
        yield steps
    finally:
        process.kill()
        process.join()


def measure(disk: Path, memory: Path, gib: int) -> dict[str, float]:
    """Measure one checkpoint of each kind."""
    shards = (gib << 30) // SHARD_BYTES
    on_disk, in_memory, written = disk / "saved", memory / "saved", disk / "written"
    try:
        paused = save(on_disk, shards, is_synced=True)
        forgotten, known = load(on_disk, is_forgotten=True), load(on_disk)
        shutil.rmtree(on_disk)
        memory_pause = save(in_memory, shards, is_synced=False)
        from_memory = load(in_memory)
        with training() as steps:
            alone = _speed(steps)
            before = steps.value
            took = write_out(in_memory, written)
            beside = (steps.value - before) / took
    finally:
        for folder in (on_disk, in_memory, written):
            shutil.rmtree(folder, ignore_errors=True)
    return {
        "disk_pause_s": paused,
        "disk_safe_s": paused,
        "disk_load_forgotten_s": forgotten,
        "disk_load_remembered_s": known,
        "memory_pause_s": memory_pause,
        "memory_safe_s": memory_pause + took,
        "memory_load_s": from_memory,
        "speed_while_written_out": beside / alone,
    }


def _speed(steps: "Synchronized[int]") -> float:
    before = steps.value
    began = time.monotonic()
    time.sleep(SPEED_SECONDS)
    return (steps.value - before) / (time.monotonic() - began)


@click.command()
@click.option("--gib", type=click.IntRange(1), multiple=True, default=(1,), show_default=True)
@click.option("--times", type=click.IntRange(1), default=1, show_default=True)
@click.option("--disk", type=click.Path(file_okay=False, exists=True, path_type=Path), default=".")
@click.option("-o", "--output", type=click.Choice(["table", "json"]), default="table")
def main(*, gib: tuple[int, ...], times: int, disk: Path, output: str) -> None:
    """Measure checkpoints of so many GiB on a disk and in memory."""
    result: dict[str, Any] = {"times": times}
    with (
        tempfile.TemporaryDirectory(dir=disk) as here,
        tempfile.TemporaryDirectory(dir=MEMORY) as there,
    ):
        for size in gib:
            found = [measure(Path(here), Path(there), size) for _ in range(times)]
            result[f"{size}_gib"] = {
                name: round(statistics.median(one[name] for one in found), 2) for name in found[0]
            }
    print_result({**result, **describe_machine()}, output)


if __name__ == "__main__":
    main()
