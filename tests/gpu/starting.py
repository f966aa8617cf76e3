"""A SideCar with one real GPU: it reads it, pins it, finds it empty or not, proves it free."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from dljob_wire.messages import Phase, State
from tests.gpu import witness
from tests.gpu.place import PROGRAM_MIB, Place
from tests.sidecar.drivers import ROOT, read_proc
from tests.sidecar.standins import consume

Figures = dict[str, object]


def is_running(generation: int):
    return lambda s: s.phase is Phase.RUNNING and s.held_generation == generation


def problems(state: State) -> dict[str, str]:
    return {each.name: each.message for each in state.problems}


def show_facts(place: Place) -> Figures:
    """NVML as the SideCar reads it agrees with nvidia-smi."""
    command = [sys.executable, "-m", "tests.gpu.reading"]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=240.0
    )
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    read, seconds = answer["gpus"], answer["seconds"]
    fields = ("index", "uuid", "name", "memory.used", "memory.total", "memory.reserved")
    told = {row["uuid"]: row for row in witness.query(*fields)}
    assert [gpu["uuid"] for gpu in read] == list(told), "nvidia-smi shows other GPUs"
    for gpu in read:
        row = told[gpu["uuid"]]
        assert str(gpu["index"]) == row["index"]
        assert abs((gpu["memory_used"] >> 20) - int(row["memory.used"])) <= 64, "memory differs"
    more = ("driver_version", "persistence_mode", "mig.mode.current")
    mine = next(row for row in witness.query("uuid", *more) if row["uuid"] == place.uuid)
    return {
        "GPUs": len(read),
        "model": told[place.uuid]["name"],
        "driver": mine["driver_version"],
        "persistence mode": mine["persistence_mode"],
        "MIG": mine["mig.mode.current"],
        "in use while idle, MiB": place.base_mib,
        "reserved by the driver, MiB": told[place.uuid]["memory.reserved"],
        "one reading of all GPUs, ms": round(seconds * 1000, 1),
    }


def show_pinning(place: Place) -> Figures:
    """A start names the GPU by UUID, and the training gets the name that its job wants."""
    figures: Figures = {}
    for wanted in ("index", "uuid"):
        options = {"gpuIds": wanted}
        command = consume(PROGRAM_MIB, place.token)
        with place.sidecar(*command, name=f"pinned-by-{wanted}", options=options) as sidecar:
            began = time.monotonic()
            sidecar.run(1, place.uuid)
            sidecar.wait_for(is_running(1))
            figures[f"start by {wanted}, s"] = round(time.monotonic() - began, 2)
            place.wait(place.holds, "the training on its GPU")
            (pid,) = sidecar.trainings()
            words = read_proc(pid, "environ").split(b"\0")
            name = place.index if wanted == "index" else place.uuid
            assert f"CUDA_VISIBLE_DEVICES={name}".encode() in words
            others = [
                row for row in witness.query("uuid", "memory.used") if row["uuid"] != place.uuid
            ]
            figures["other GPUs, MiB"] = [int(row["memory.used"]) for row in others]
        place.wait_free()
    return figures


@contextmanager
def stranger(place: Place) -> Iterator[subprocess.Popen[bytes]]:
    """Have a program on the GPU that no SideCar has started."""
    given = {**os.environ, "CUDA_VISIBLE_DEVICES": place.uuid}
    command = consume(PROGRAM_MIB, place.token, "stranger")
    process = subprocess.Popen(command, env=given, stdout=subprocess.DEVNULL)
    try:
        place.wait(place.holds, "the program of others")
        yield process
    finally:
        process.kill()
        process.wait(240.0)


def show_emptiness(place: Place) -> Figures:
    """Nothing is started beside a program of others, and everything as soon as that is gone."""
    command = consume(PROGRAM_MIB, place.token, "job")
    with place.sidecar(*command, name="not-empty") as sidecar:
        with stranger(place) as other:
            began = time.monotonic()
            sidecar.run(1, place.uuid)
            state = sidecar.wait_for(lambda s: s.phase is Phase.FAILED)
            refused = time.monotonic() - began
            assert "GPUNotEmpty" in problems(state), problems(state)
            assert place.holds(1), "the witness sees other programs than the one of others"
            other.send_signal(signal.SIGKILL)
            freed = place.wait_free()
        sidecar.wait_for(lambda s: not any(gpu.busy_unassigned for gpu in s.gpus))
        began = time.monotonic()
        sidecar.run(2, place.uuid)
        sidecar.wait_for(is_running(2))
        return {
            "refusal": problems(state)["GPUNotEmpty"],
            "refused after, s": round(refused, 2),
            "memory of the killed program gone after, s": round(freed, 2),
            "start on the empty GPU, s": round(time.monotonic() - began, 2),
        }


def show_release(place: Place) -> Figures:
    """After SIGKILL a SideCar says that the GPU is released when its memory is free, and not before."""
    command = consume(PROGRAM_MIB, place.token, "stubborn")
    with place.sidecar(
        *command, name="released", options={"checkpoint.graceSeconds": 0}
    ) as sidecar:
        sidecar.run(1, place.uuid)
        sidecar.wait_for(is_running(1))
        place.wait(place.holds, "the training on its GPU")
        began = time.monotonic()
        sidecar.stop(2)
        sidecar.wait_for(lambda s: s.released)
        seconds = time.monotonic() - began
        used = witness.used_mib(place.uuid)
        assert used <= place.base_mib + 64, f"released with {used} MiB in use"
    return {"from stop to proof, s": round(seconds, 2), "in use then, MiB": used}
