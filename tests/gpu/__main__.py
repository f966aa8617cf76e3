"""
Show what a machine with a real NVIDIA GPU can show, and print the figures; called by `make test-gpu`.

Every part prints its figures as a table for docs/gpu-tests.md. With ``--rehearse`` NVML, CUDA and nvidia-smi are
stand-ins, so that the way through it is tested where there is no GPU; the figures mean nothing then.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from tests.gpu import handing, living, starting, training, witness
from tests.gpu.place import Place, find_place, leave_nothing, rehearsed
from tests.gpu.starting import Figures

Part = Callable[[Place], Figures]


class Skipped(Exception):
    """This cannot be shown here: why."""


def say(line: str = "") -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def show_mig(place: Place) -> Figures:
    """A GPU that is cut into parts is not scheduled, and said to be so."""
    (mode,) = [
        row["mig.mode.current"]
        for row in witness.query("uuid", "mig.mode.current")
        if row["uuid"] == place.uuid
    ]
    if mode != "Enabled":
        raise Skipped(f"MIG is not on (mig.mode.current is {mode})")
    parts = [line for (line, *_) in witness.ask("-L") if "MIG" in line]
    return {"parts": len(parts), "first part": parts[0] if parts else "-"}


def show_training(place: Place) -> Figures:
    if not place.torch:
        raise Skipped("there is no PyTorch; --torch names an interpreter that has it")
    return training.show_training(place)


def show_live(place: Place) -> Figures:
    """The processes of a job stay while it gets another GPU and gives it back."""
    if not place.torch:
        raise Skipped("there is no PyTorch; --torch names an interpreter that has it")
    figures = living.show_trial(place)
    if not place.others:
        return {**figures, "changes of GPUs": "skipped: there is no second GPU that is empty"}
    return living.show_changes(place, place.others[0])


def parts(times: int) -> dict[str, Part]:
    return {
        "NVML": starting.show_facts,
        "pinned by UUID": starting.show_pinning,
        "empty before it is used": starting.show_emptiness,
        "proof of free memory after SIGKILL": starting.show_release,
        "PyTorch, stopped and started": show_training,
        "live changes": show_live,
        "MIG": show_mig,
        "handed over and back under kills": partial(handing.show_handing_over, times=times),
    }


def show(name: str, part: Part, place: Place) -> bool:
    """Print what comes of a part; returns whether it held."""
    began = time.monotonic()
    try:
        figures, result = part(place), "ok"
    except Skipped as why:
        figures, result = {}, f"skipped: {why}"
    except Exception as error:  # noqa: BLE001 - the other parts are shown all the same
        figures, result = {}, f"FAILED: {type(error).__name__}: {error}"
    say(f"{name}: {result} ({time.monotonic() - began:.0f} s)")
    for what, value in figures.items():
        say(f"| {what} | {value} |")
    return not result.startswith("FAILED")


def main() -> int:
    options = argparse.ArgumentParser(prog="make test-gpu", description=__doc__)
    options.add_argument("--rehearse", action="store_true", help="with stand-ins, without a GPU")
    options.add_argument("--torch", default="", help="an interpreter that has PyTorch with CUDA")
    options.add_argument(
        "--times", type=int, default=handing.TIMES, help="how often a GPU is handed over"
    )
    given = options.parse_args()
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dljob-gpu-")))
        if given.rehearse:
            stack.enter_context(rehearsed(folder))
        try:
            place = find_place(folder, is_rehearsal=given.rehearse, torch=given.torch)
        except witness.NoGpu as why:
            say(f"skipped: {why}; `python -m tests.gpu --rehearse` shows the way through it")
            return 0
        stack.callback(leave_nothing, place)
        held = [show(name, part, place) for name, part in parts(given.times).items()]
        say(f"{sum(held)} of {len(held)} parts held or were skipped")
        return 0 if all(held) else 1


if __name__ == "__main__":
    sys.exit(main())
