"""
The cost of changing the GPUs of a training in place, with real processes.

One run measures three things. The time from the controller's first byte to the new process, with a
training that ends at once on SIGTERM and needs no checkpoint. The time that warm interpreters save, with
numpy and, where ``--python`` has it, with PyTorch on any device. And 4 -> 2 -> 4
processes in place against ending the whole container with its SideCar and starting it again.

All moments are read from one clock of the machine (CLOCK_MONOTONIC): the first one by the
controller, the last one by the training process itself.
"""

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click
from _measuring import describe_machine, print_result, summarize
from _progress import run, say
from _sidecars import LONGEST_S, TELL, SideCar, Tellings

LIMIT_MS = 100.0
GPU_LIMIT_MS = 2000.0
"""For the first step of a ResNet-18 on a GPU, with a warm interpreter."""
SIZES = (4, 2)
PER_GPU = {"processes": "perGpu"}

# The clock is read before anything else is done: what came before is the interpreter's start.
BARE = f"import time\nat = time.monotonic()\n{TELL}tell('begun', at)\ntime.sleep(1000)\n"

NUMPY = f"""
import time
import numpy
{TELL}
chance = numpy.random.default_rng(0)
weights, data = chance.normal(size=(784, 128)), chance.normal(size=(256, 784))
output = data @ weights
weights -= 1e-3 * data.T @ (output - numpy.tanh(output))
tell("step", time.monotonic())
time.sleep(1000)
"""

TORCH = f"""
import time
import torch
from torch import nn
{TELL}

class Block(nn.Module):
    def __init__(self, before, after, stride):
        super().__init__()
        self.way = nn.Sequential(
            nn.Conv2d(before, after, 3, stride, 1, bias=False), nn.BatchNorm2d(after), nn.ReLU(),
            nn.Conv2d(after, after, 3, 1, 1, bias=False), nn.BatchNorm2d(after))
        self.skip = nn.Sequential(
            nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after))
    def forward(self, x):
        return torch.relu(self.way(x) + self.skip(x))

def resnet18():
    blocks, before = [], 64
    for after, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        blocks += [Block(before, after, stride), Block(after, after, 1)]
        before = after
    head = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(),
            nn.MaxPool2d(3, 2, 1)]
    return nn.Sequential(*head, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 1000))

device = "cuda" if torch.cuda.is_available() else "cpu"
size, batch = (224, 32) if device == "cuda" else (64, 4)
model = resnet18().to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loss = model(torch.randn(batch, 3, size, size, device=device)).square().mean()
loss.backward()
optimizer.step()
loss.item()
tell("step", time.monotonic())
time.sleep(1000)
"""

FIND_TORCH = """
import json, torch
is_gpu = torch.cuda.is_available()
device = torch.cuda.get_device_name() if is_gpu else "the processor"
print(json.dumps({"version": torch.__version__, "device": device, "is_gpu": is_gpu}))
"""


def milliseconds(seconds: Sequence[float]) -> dict[str, float]:
    return summarize([1000 * each for each in seconds])


# --- from the declaration to the new process ------------------------------------------------


def measure_begins(count: int) -> dict[str, Any]:
    """Reshape one training over and over."""
    with tempfile.TemporaryDirectory() as name, Tellings(Path(name)) as tellings:
        command = [sys.executable, "-I", "-S", "-c", BARE, str(tellings.path)]
        with SideCar(Path(name), command) as sidecar:
            sidecar.wait_ready()
            # The first one is a start, and no reshape.
            waits = [_begin(sidecar, tellings, turn) for turn in range(1, count + 2)][1:]
    return {
        "what": "from PUT /v1/target to the new process",
        "reshapes": count,
        "target_to_exec_ms": milliseconds(waits),
        "limit_p99_ms": LIMIT_MS,
        "exec_is": "no later than this: the first line of the new program, after the start of its"
        " interpreter (python -I -S)",
        "interpreter_start_ms": milliseconds([_start_bare() for _ in range(20)]),
    }


def _begin(sidecar: SideCar, tellings: Tellings, generation: int) -> float:
    declared = sidecar.put(generation)
    begun = tellings.wait_for(generation, "begun")
    sidecar.wait_running(generation)
    return begun - declared


def _start_bare() -> float:
    """Return how long an interpreter takes to its first line without a SideCar in between."""
    began = time.monotonic()
    code = "import time; print(time.monotonic())"
    ran = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code], capture_output=True, check=True, timeout=LONGEST_S
    )
    return float(ran.stdout) - began


# --- warm and cold --------------------------------------------------------------------------


def measure_warmth(library: str, script: str, python: str, count: int) -> dict[str, Any]:
    """Reshape with and without an interpreter that has imported the library already."""
    cold = _reshape_to_step(script, python, count)
    warm = _reshape_to_step(script, python, count, preload=library)
    return {
        "what": f"from PUT /v1/target to the end of the first step with {library}",
        "reshapes": count,
        "cold_ms": milliseconds(cold),
        "warm_ms": milliseconds(warm),
        "warm_takes_of_cold": round(statistics.median(warm) / statistics.median(cold), 3),
    }


def _reshape_to_step(script: str, python: str, count: int, *, preload: str = "") -> list[float]:
    options = {"preload": preload.split(",")} if preload else {}
    with tempfile.TemporaryDirectory() as name, Tellings(Path(name)) as tellings:
        command = _write_training(Path(name), script, python, tellings)
        with SideCar(Path(name), command, options=options) as sidecar:
            sidecar.wait_ready()
            waits = [
                _step(sidecar, tellings, generation, is_warm=bool(preload))
                for generation in range(1, count + 2)
            ]
    return waits[1:]


def _step(sidecar: SideCar, tellings: Tellings, generation: int, *, is_warm: bool) -> float:
    if is_warm:
        sidecar.wait_for(lambda s: s.warmth.ready > 0, "a warm interpreter is ready")
    declared = sidecar.put(generation)
    done = tellings.wait_for(generation, "step")
    state = sidecar.wait_running(generation)
    if any(process.warm != is_warm for process in state.processes):
        raise RuntimeError(f"not as it should have started: {state}")
    return done - declared


def _write_training(folder: Path, script: str, python: str, tellings: Tellings) -> list[str]:
    path = folder / "train.py"
    path.write_text(script, encoding="utf-8")
    return [python, str(path), str(tellings.path)]


def check_python(_: object, __: object, python: str) -> str:
    """Refuse an interpreter that cannot run what is measured, before anything is."""
    try:
        subprocess.run([python, "-c", "import numpy"], check=True, timeout=LONGEST_S)
    except (OSError, subprocess.CalledProcessError) as error:
        raise click.BadParameter(f"{python} cannot import numpy: {error}") from error
    return python


def find_torch(python: str) -> dict[str, Any] | None:
    found = subprocess.run(
        [python, "-c", FIND_TORCH], capture_output=True, text=True, check=False, timeout=LONGEST_S
    )
    return json.loads(found.stdout) if found.returncode == 0 else None


# --- in place, and from the beginning -------------------------------------------------------


def measure_ways(python: str, count: int) -> dict[str, Any]:
    """Go 4 -> 2 -> 4 ``count`` times either way, with the same training."""
    sizes = [SIZES[0], *[size for _ in range(count) for size in reversed(SIZES)]]
    with tempfile.TemporaryDirectory() as name, Tellings(Path(name)) as tellings:
        command = _write_training(Path(name), NUMPY, python, tellings)
        # The first of each is a start, and no change.
        in_place = list(_reshape_in_place(Path(name), command, tellings, sizes))[1:]
        recreated = list(_recreate(Path(name), command, tellings, sizes))[1:]
    return {
        "what": "4 -> 2 -> 4 processes with numpy, from the decision to the first step of the last",
        "changes": len(in_place),
        "in_place_ms": milliseconds(in_place),
        "container_ended_and_started_ms": milliseconds(recreated),
        "in_place_takes_of_it": round(
            statistics.median(in_place) / statistics.median(recreated), 3
        ),
    }


def _reshape_in_place(
    folder: Path, command: Sequence[str], tellings: Tellings, sizes: Sequence[int]
) -> Iterator[float]:
    with SideCar(folder, command, options=PER_GPU) as sidecar:
        sidecar.wait_ready()
        for generation, size in enumerate(sizes, start=1):
            declared = sidecar.put(generation, gpus=size, processes=size)
            yield tellings.wait_for(generation, "step", processes=size) - declared
            sidecar.wait_running(generation)


def _recreate(
    folder: Path, command: Sequence[str], tellings: Tellings, sizes: Sequence[int]
) -> Iterator[float]:
    """Do what deleting and creating a pod does at the least: no image, no scheduler, no mount."""
    decided = time.monotonic()
    for generation, size in enumerate(sizes, start=1):
        with SideCar(folder, command, options=PER_GPU) as sidecar:
            sidecar.wait_ready()
            sidecar.put(generation, gpus=size, processes=size)
            yield tellings.wait_for(generation, "step", processes=size) - decided
            sidecar.wait_running(generation)
            decided = time.monotonic()


@click.command(help=__doc__)
@click.option("--reshapes", default=200, show_default=True, help="Of the training without imports.")
@click.option("--starts", default=5, show_default=True, help="Warm and cold, with each library.")
@click.option("--changes", default=3, show_default=True, help="How often 4 -> 2 -> 4 is gone.")
@click.option(
    "--python",
    default=sys.executable,
    callback=check_python,
    help="Runs the trainings with libraries; it needs numpy, and may have PyTorch.",
)
@click.option("-o", "form", type=click.Choice(["table", "json"]), default="table")
def main(*, reshapes: int, starts: int, changes: int, python: str, form: str) -> None:
    """Measure one after the other, each with SideCars of its own."""
    say("measures the time to the new process")
    rows = [measure_begins(reshapes)]
    say("measures warm and cold starts with numpy")
    rows.append(measure_warmth("numpy", NUMPY, python, starts))
    torch = find_torch(python)
    if torch is None:
        rows.append({"what": "with PyTorch", "left_out": f"{python} has no PyTorch"})
    else:
        limit = {"limit_ms": GPU_LIMIT_MS} if torch["is_gpu"] else {}
        rows.append({**measure_warmth("torch", TORCH, python, starts), **limit, "torch": torch})
    say("measures 4 -> 2 -> 4 processes")
    rows.append(measure_ways(python, changes))
    print_result([{**row, "machine": describe_machine()} for row in rows], form)


if __name__ == "__main__":
    run(main)
