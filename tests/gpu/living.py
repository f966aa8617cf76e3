"""Live changes of a real training on real GPUs: what they take, and what a survivor keeps on the GPU of a leaver."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

from tests.gpu import witness
from tests.gpu.place import Place
from tests.gpu.starting import Figures, is_running, problems
from tests.sidecar.drivers import ROOT
from tests.sidecar.sidecars import SideCar
from tests.sidecar.targets import live_run, run

TRAIN = ROOT / "examples" / "live" / "train.py"
ROUNDS = 5
SETTLED_MIB = 64
"""Two readings of an idle GPU may differ by it."""


def show_trial(place: Place) -> Figures:
    """One GPU: the process reconfigures its group in place, and trains on."""
    with training_on(place, place.uuid) as training:
        return {"a trial, ms": training.try_live()}


def show_changes(place: Place, other: str) -> Figures:
    """Two GPUs: each process in turn leaves its GPU and another one joins there, while the other process goes on."""
    idle = {gpu: witness.used_mib(gpu) for gpu in (place.uuid, other)}

    def is_free(gpu: str) -> bool:
        return witness.used_mib(gpu) <= idle[gpu] + SETTLED_MIB

    shrinks, grows, frees, kept = [], [], [], []
    with training_on(place, place.uuid, other) as training:
        trial = training.try_live()
        for turn in range(ROUNDS):
            stays = turn % 2
            pid, left = training.pids()[stays], training.gpus[1 - stays]
            shrinks.append(training.change(stays))
            began = time.monotonic()
            place.wait(partial(is_free, left), "a free GPU")
            frees.append(time.monotonic() - began)
            kept.append(witness.used_mib(left) - idle[left])
            grows.append(training.change(0, joins=(left,)))
            assert training.pids()[0] == pid, "the process that stays was started again"
    return {
        "a trial, ms": trial,
        "2 -> 1, longest pause, ms": max(shrinks),
        "1 -> 2, longest pause, ms": max(grows),
        "from the change to a free GPU, longest, s": round(max(frees), 2),
        "kept on the leaver's GPU, MiB": max(kept),
    }


@contextmanager
def training_on(place: Place, *gpus: str) -> Iterator[Training]:
    name = f"live-{len(gpus)}"
    command = (place.torch, str(TRAIN), "--steps=1000000", f"--out={place.folder / name}-out")
    options = {
        "framework": "pytorch",
        "processes": "perGpu",
        "gpuIds": "index",
        "progress.log": r"step (?P<iteration>\d+) loss=(?P<loss>[\d.]+)",
        "liveSeconds": 60,
    }
    with place.sidecar(*command, name=name, options=options) as sidecar:
        yield Training(sidecar, gpus)
    place.wait_free()


class Training:
    """The example for live changes, with a process on each of these GPUs."""

    def __init__(self, sidecar: SideCar, gpus: tuple[str, ...]) -> None:
        self._sidecar = sidecar
        count = len(gpus)
        whole = run(1, gpus=count, processes=count)
        self._run = replace(whole, gpus=gpus, incarnation=sidecar.incarnation)
        assert sidecar.declare(self._run).status == 200
        sidecar.wait_for(lambda s: s.live is not None and s.live.capable == count)

    @property
    def gpus(self) -> tuple[str, ...]:
        """The GPUs by rank."""
        return self._run.gpus

    def pids(self) -> list[int]:
        return [one.pid for one in self._sidecar.state().processes]

    def try_live(self) -> float:
        """Return the milliseconds for which a change of the same members pauses the training."""
        self._run = replace(self._run, live_trial=self._run.live_trial + 1)
        assert self._sidecar.declare(self._run).status == 200
        state = self._sidecar.wait_for(
            lambda s: s.live is not None and s.live.trial.succeeded is not None
        )
        assert state.live is not None
        assert state.live.trial.succeeded, state.live.trial.message
        return round(1000 * state.live.trial.seconds, 1)

    def change(self, *keep: int, joins: tuple[str, ...] = ()) -> float:
        """Change the members; return the longest pause in milliseconds."""
        generation = self._run.generation + 2
        after = live_run(self._run, generation, keep=keep, joins=len(joins))
        gpus = (*(self._run.gpus[rank] for rank in keep), *joins)
        self._run = replace(after, gpus=gpus, incarnation=self._sidecar.incarnation)
        assert self._sidecar.declare(self._run).status == 200
        state = self._sidecar.wait_for(is_running(generation))
        assert state.live is not None
        assert state.live.change is not None, problems(state)
        assert not state.live.change.message, state.live.change.message
        return round(state.live.change.pause_ms, 1)
