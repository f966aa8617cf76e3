"""
Ordinary trainings under a real SideCar, on one, two, four and one GPU; with the seconds of each change.

Used by :mod:`tests.sidecar.test_trainings`, and by hand for the table of docs/training.md::

    python -m tests.sidecar.ordinary torchrun huggingface lightning fsdp
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import yaml

from dljob.control.acting.sidecar_options import describe_training, with_folder
from dljob.core.documents import jobfile
from dljob_wire.messages import Phase, State
from dljob_wire.training import write_training
from tests.sidecar.drivers import HERE, ROOT
from tests.sidecar.sidecars import SideCar

EXAMPLES = ROOT / "examples"
INSTALLED = ROOT / ".frameworks"
LATER = ("fsdp", "accelerate", "deepspeed")
WIDTHS = (1, 2, 4, 1)
ENDLESS = 1_000_000
BETWEEN = 60
"""The number of steps on each number of GPUs before it changes."""
LIMIT_SECONDS = 300
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}
LAUNCHER = (str(HERE / "torchrun.py"),)


def find_python(name: str) -> Path:
    """Return the interpreter that an example needs; some want a later PyTorch than Debian 12's."""
    return INSTALLED / ("fsdp" if name in LATER else "pytorch") / "bin" / "python"


class Change(NamedTuple):
    """The result of a start on another number of GPUs."""

    width: int
    saved: float
    stopped: float
    started: float
    first_step: float
    """Seconds from the declaration to the first step that is seen, everything before included."""
    processes: tuple[dict[str, str], ...]
    """The environments of those that train."""
    reached: int
    """The step that was seen last on the former number."""
    steps: int
    """The step that was seen first on this one."""


def begin(
    folder: Path,
    token: str,
    name: str,
    *,
    launcher: tuple[str, ...] = (),
    warm: bool = False,
    steps: int = ENDLESS,
) -> SideCar:
    """Start the SideCar as the job file of an example says."""
    document = yaml.safe_load((EXAMPLES / name / "job.yaml").read_text())
    if launcher:
        document["spec"]["processes"] = "perNode"
    job = jobfile.parse(document, require_template=True)
    own = folder / token
    own.mkdir()
    training = replace(describe_training(with_folder(job, str(own))), poll_seconds=0.2)
    options = json.loads(write_training(training))
    if job.progress.http:
        options["progressSocket"] = str(folder / "progress")
    if not warm:
        options.pop("preload", None)
    script = str(EXAMPLES / name / "train.py")
    command = [str(find_python(name)), *launcher, script, f"--steps={steps}", f"--out={own}"]
    return SideCar(
        folder,
        token,
        *command,
        options=options,
        environment={**ENVIRONMENT, "DLJOB_CHECKPOINT_DIR": str(own)},
    )


def walk(sidecar: SideCar, *, launcher: bool = False) -> list[Change]:
    """Run a training on each number of GPUs in turn."""
    sidecar.wait_ready()
    return [
        _change(sidecar, generation, width, launcher=launcher)
        for generation, width in enumerate(WIDTHS, start=1)
    ]


def _change(sidecar: SideCar, generation: int, width: int, *, launcher: bool) -> Change:
    reached = sidecar.state().progress.iteration
    began = time.monotonic()
    gpus = [str(gpu) for gpu in range(width)]
    sidecar.run(generation, *gpus, processes=1 if launcher else width)
    running = wait_for(
        sidecar,
        lambda s: s.phase is Phase.RUNNING and s.held_generation == generation,
        f"generation {generation}",
    )
    stepping = wait_for(sidecar, lambda s: s.progress.begun, "a step")
    first_step = time.monotonic() - began
    processes = find_ranks(sidecar, launcher=launcher)
    last = wait_for(
        sidecar,
        lambda s: s.progress.iteration >= stepping.progress.iteration + BETWEEN,
        "more steps",
    )
    change = last.change or running.change
    assert change is not None
    assert generation == 1 or change.saving.value == "confirmed", change
    return Change(
        width,
        change.checkpoint_seconds,
        change.stop_seconds,
        change.start_seconds,
        first_step,
        processes,
        reached,
        stepping.progress.iteration,
    )


def has_passed(step: int, generation: int) -> Callable[[State], bool]:
    return lambda state: state.held_generation == generation and state.progress.iteration > step


def wait_for(sidecar: SideCar, is_reached: Callable[[State], bool], what: str) -> State:
    """Poll for longer than elsewhere, because frameworks start slowly."""
    end = time.monotonic() + LIMIT_SECONDS
    while not is_reached(state := sidecar.state()):
        assert time.monotonic() < end, f"{what} has not come: {state}\n{sidecar.read_log()[-3000:]}"
        assert state.phase not in (Phase.EXITED, Phase.FAILED), sidecar.read_log()[-3000:]
        time.sleep(0.02)
    return state


def find_ranks(sidecar: SideCar, *, launcher: bool) -> tuple[dict[str, str], ...]:
    """Return the environments of the ranks; the kernel does not show those of warm starts."""
    found = map(read_variables, sidecar.trainings())
    run = "none" if launcher else "dljob"
    return tuple(each for each in found if each.get("TORCHELASTIC_RUN_ID") == run)


def read_variables(pid: int) -> dict[str, str]:
    try:
        text = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace")
    except OSError:
        return {}
    return dict(each.partition("=")[::2] for each in text.split("\0") if "=" in each)


def main(*names: str) -> None:
    """Print a table of what changes took."""
    for name in names:
        launcher = LAUNCHER if name.endswith("+launcher") else ()
        warm = name.endswith("+warm")
        with tempfile.TemporaryDirectory(prefix="dljob-") as folder:
            example = name.partition("+")[0]
            with begin(Path(folder), "token", example, launcher=launcher, warm=warm) as sidecar:
                changes = walk(sidecar, launcher=bool(launcher))
        before = (0, *WIDTHS)
        for former, one in zip(before, changes, strict=False):
            seconds = (one.saved, one.stopped, one.started, one.first_step)
            row = " | ".join(f"{each:.2f}" for each in seconds)
            sys.stdout.write(f"| {name} | {former} -> {one.width} | {row} | {one.steps} |\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
