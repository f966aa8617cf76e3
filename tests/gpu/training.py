"""A real PyTorch training on the GPU, stopped and started again: what each phase takes, cold and warm."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence

from dljob_wire.messages import Phase, Saving
from tests.gpu.place import Place
from tests.gpu.starting import Figures, is_running, problems
from tests.sidecar.drivers import ROOT
from tests.sidecar.sidecars import SideCar

TRAIN = ROOT / "examples" / "pytorch" / "train.py"
ROUNDS = 3
START_SECONDS = 240.0
"""The first import of PyTorch reads gigabytes."""


def show_training(place: Place) -> Figures:
    """The training goes on from its checkpoint each time, on the GPU that its environment names."""
    cold = measure(place, "cold")
    warm = measure(place, "warm", ["torch"])
    return {
        f"{how}: {what}, s": value
        for how, each in (("cold", cold), ("warm", warm))
        for what, value in each.items()
    }


def measure(place: Place, name: str, preload: Sequence[str] = ()) -> Mapping[str, float]:
    """Return the medians of some stops and starts."""
    saved = place.folder / f"saved-{name}"
    command = (place.torch, str(TRAIN), "--iterations=1000000", f"--checkpoints={saved}")
    how = {
        "framework": "pytorch",
        "processes": "perGpu",
        "gpuIds": "index",
        "checkpoint.graceSeconds": 5,
        "checkpoint.signal": "SIGUSR1",
        "checkpoint.confirm": "file",
        "checkpoint.path": str(saved),
        "checkpoint.timeoutSeconds": 60,
        "progress.log": r"step (?P<iteration>\d+) loss=(?P<loss>[\d.]+)",
        "preload": list(preload),
    }
    rounds = []
    with place.sidecar(*command, name=f"pytorch-{name}", options=how) as sidecar:
        first = begin(place, sidecar, 1)
        rounds += [change(place, sidecar, 2 * n) for n in range(1, ROUNDS + 1)]
        if not place.is_rehearsal:
            assert not place.is_free(), "it does not train on the GPU"
        sidecar.stop(2 * ROUNDS + 2)
        sidecar.wait_for(lambda s: s.released)
    place.wait_free()
    medians = {what: round(statistics.median(r[what] for r in rounds), 2) for what in rounds[0]}
    return {"the very first start to a step": round(first, 2), **medians}


def begin(place: Place, sidecar: SideCar, generation: int) -> float:
    """Start it; returns the seconds until its first step."""
    wait_until_warm(place, sidecar)
    began = time.monotonic()
    sidecar.run(generation, place.uuid)
    place.wait(lambda: has_stepped(sidecar, generation), "the first step", START_SECONDS)
    return time.monotonic() - began


def change(place: Place, sidecar: SideCar, generation: int) -> dict[str, float]:
    """Stop it by a checkpoint and start it again; returns the seconds of each phase."""
    before = sidecar.state().progress.iteration
    sidecar.stop(generation)
    state = sidecar.wait_for(lambda s: s.released)
    assert state.change is not None
    assert state.change.saving is Saving.CONFIRMED, problems(state)
    until_step = begin(place, sidecar, generation + 1)
    started = sidecar.wait_for(is_running(generation + 1))
    assert started.change is not None
    assert started.progress.iteration >= before, "it has not gone on from its checkpoint"
    return {
        "checkpoint": state.change.checkpoint_seconds,
        "stop and proof": state.change.stop_seconds,
        "start of the process": started.change.start_seconds,
        "start to the first step": until_step,
    }


def has_stepped(sidecar: SideCar, generation: int) -> bool:
    state = sidecar.state()
    assert state.phase is not Phase.FAILED, problems(state)
    return is_running(generation)(state) and state.progress.begun


def wait_until_warm(place: Place, sidecar: SideCar) -> None:
    def is_warm() -> bool:
        warmth = sidecar.state().warmth
        return warmth.ready >= warmth.wanted

    place.wait(is_warm, "a spare interpreter", START_SECONDS)
