"""
From the decision to the first step of a real PyTorch DDP job that grows from 1 to 4 over two pods.

Two SideCars on this machine are the two pods: the job has one process in the first, and then two in each, or
one in the first and three in the second, which is new and whose interpreters wait already.
What the controller says is what it says on Kubernetes: the first pod is told to stop and what comes after
that, and when it has released everything both are told to run. The training is DDP over gloo, on the
processor; it saves itself on SIGUSR1 with ``torch.save``, and goes on from that.

``cold`` starts interpreters, ``warm`` has them wait with PyTorch imported, as many in each pod as the node
has GPUs, and ``warm_marker`` confirms the checkpoint by a marker instead of by files that have settled.
``warm_marker_1_3`` has three of the four processes in the new pod. Phases are those of the slowest process, by one clock of the machine. Nothing of
a real network or of GPUs is in it.
"""

import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import click
from _measuring import describe_machine, print_result
from _sidecars import FIRST_PORT, LONGEST_S, ROOT, TELL, SideCar, Tellings

from dlwire import codec
from dlwire.messages import Peer, Run, State, Stop

HOST = "127.0.0.1"
AIMS_MS = {"cold": 3000.0, "warm": 1000.0}

TRAINING = f"""
import time
{TELL}
tell("begun", time.monotonic())
import os, signal, sys
from pathlib import Path
import torch
import torch.distributed as dist
from torch import nn
tell("imported", time.monotonic())

folder, is_asked = Path(sys.argv[2]), []
signal.signal(signal.SIGUSR1, lambda *_: is_asked.append(True))
torch.set_num_threads(1)
dist.init_process_group("gloo")
tell("met", time.monotonic())

model = nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 10))
saved = os.environ.get("DLJOB_CHECKPOINT_RESUME", "")
step = 0
if saved:
    state = torch.load(Path(saved) / "state.pt")
    model.load_state_dict(state["model"])
    step = state["step"]
parallel = nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(parallel.parameters(), lr=0.01)
tell("built", time.monotonic())
is_first = True
while True:
    loss = parallel(torch.randn(32, 784)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    step += 1
    if is_first:
        tell("step", time.monotonic())
        is_first = False
    if is_asked and dist.get_rank() == 0:
        is_asked.clear()
        place = folder / f"checkpoint-{{step}}"
        place.mkdir()
        with open(place / "state.pt", "wb") as file:
            torch.save({{"model": model.state_dict(), "step": step}}, file)
            os.fsync(file.fileno())
        with open(place / "DONE", "w") as file:
            file.write("1")
"""
PHASES = ("begun", "imported", "met", "built", "step")


class Pods:
    """The two pods of the job, and the generation that was declared last."""

    def __init__(self, first: SideCar, second: SideCar, tellings: Tellings) -> None:
        self.first, self.second = first, second
        self._tellings = tellings
        self._generation = 0

    def run(self, *processes: int) -> dict[str, float]:
        """Tell the first pods to run so many processes each; return when the last was how far."""
        self._generation += 1
        peers = tuple(Peer(HOST, count) for count in processes)
        began = time.monotonic()
        for number, (pod, count) in enumerate(
            zip((self.first, self.second), processes, strict=False)
        ):
            run = Run(
                epoch=1,
                generation=self._generation,
                incarnation=pod.incarnation,
                gpus=tuple(str(index) for index in range(count)),
                rank_offset=sum(processes[:number]),
                world_size=sum(processes),
                peers=peers,
                rendezvous_port=FIRST_PORT + self._generation,
            )
            pod.ask("PUT", "/v1/target", codec.encode_target(run))
        return {"told": began, **self._hear(sum(processes))}

    def _hear(self, processes: int) -> dict[str, float]:
        heard: dict[str, list[float]] = {phase: [] for phase in PHASES}
        while len(heard[PHASES[-1]]) < processes:
            telling = self._tellings.next()
            if telling.generation == self._generation:
                heard[telling.what].append(telling.at)
        return {phase: max(moments) for phase, moments in heard.items()}

    def stop(self, pod: SideCar, *, checkpoint: bool, coming: int = 0) -> State:
        """Tell a pod to stop, and return when it has released everything."""
        self._generation += 1
        stop = Stop(1, self._generation, pod.incarnation, checkpoint=checkpoint, coming=coming)
        pod.ask("PUT", "/v1/target", codec.encode_target(stop))
        return pod.wait_for(lambda state: state.released)

    def wait_warm(self, *spares: int) -> None:
        for pod, count in zip((self.first, self.second), spares, strict=True):
            pod.wait_for(partial(_has_spares, count=count))


def _has_spares(state: State, count: int) -> bool:
    return state.warmth.ready >= count


def measure(
    python: str,
    changes: int,
    options: Sequence[str],
    *,
    is_warm: bool,
    wide: tuple[int, int] = (2, 2),
) -> dict[str, Any]:
    """Let the job grow so many times, and tell the phases of each."""
    with tempfile.TemporaryDirectory() as name, Tellings(Path(name)) as tellings:
        root = Path(name)
        checkpoints = root / "checkpoints"
        script = root / "train.py"
        script.write_text(TRAINING, encoding="utf-8")
        command = [python, str(script), str(tellings.path), str(checkpoints)]
        given = ["--processes", "perGpu", "--checkpoint-signal", "SIGUSR1", *options]
        given += ["--checkpoint-confirm", "file", "--checkpoint-path", str(checkpoints)]
        given += ["--checkpoint-files", "checkpoint-*", "--checkpoint-seconds", f"{LONGEST_S:g}"]
        given += ["--preload", "torch,torch.distributed"] if is_warm else []
        for folder in (root / "first", root / "second", checkpoints):
            folder.mkdir()
        with (
            SideCar(root / "first", command, options=[*given, f"--most-spares={wide[0]}"]) as first,
            SideCar(
                root / "second", command, options=[*given, f"--most-spares={wide[1]}"]
            ) as second,
        ):
            first.wait_ready()
            second.wait_ready()
            pods = Pods(first, second, tellings)
            pods.run(1)
            found = [_grow(pods, wide, is_warm=is_warm) for _ in range(changes)]
    return {phase: round(statistics.median(one[phase] for one in found)) for phase in found[0]}


def _grow(pods: Pods, wide: tuple[int, int], *, is_warm: bool) -> dict[str, float]:
    """Go from one process to so many in each pod and back; return the milliseconds of the way up."""
    if is_warm:
        pods.wait_warm(*wide)
    decided = time.monotonic()
    released = pods.stop(pods.first, checkpoint=True, coming=wide[0])
    moments = pods.run(*wide)
    changed = released.change
    assert changed is not None
    phases = {
        "checkpoint": changed.checkpoint_seconds,
        "stop": changed.stop_seconds,
        "start_of_processes": moments["begun"] - moments["told"],
        "imports": moments["imported"] - moments["begun"],
        "meeting": moments["met"] - moments["imported"],
        "model_and_checkpoint": moments["built"] - moments["met"],
        "first_step": moments["step"] - moments["built"],
        "total": moments["step"] - decided,
    }
    states = (pods.first.state(), pods.second.state())
    warm = [process.warm for state in states for process in state.processes]
    if warm != [is_warm] * 4:
        raise RuntimeError(f"not as they should have started: warm are {warm}")
    pods.stop(pods.first, checkpoint=True, coming=1)
    pods.stop(pods.second, checkpoint=False)
    pods.run(1)
    return {phase: 1000.0 * seconds for phase, seconds in phases.items()}


def find_python() -> str:
    """Return the interpreter of `make test-frameworks`, or else whatever python3 is."""
    installed = ROOT / ".frameworks" / "pytorch" / "bin" / "python"
    return str(installed) if installed.exists() else "python3"


def has_torch(python: str) -> bool:
    ran = subprocess.run(
        [python, "-c", "import torch.distributed"], capture_output=True, check=False
    )
    return ran.returncode == 0


@click.command()
@click.option("--changes", type=click.IntRange(1), default=2, show_default=True)
@click.option("--python", default=find_python, help="One that has PyTorch.")
@click.option("-o", "--output", type=click.Choice(["table", "json"]), default="table")
def main(*, changes: int, python: str, output: str) -> None:
    """Measure what it takes until a DDP job trains on four GPUs instead of one."""
    if not has_torch(python):
        click.echo(f"{python} has no PyTorch; `make test-frameworks` installs one", err=True)
        return
    # As a container says how many GPUs are there: so many interpreters wait before the first run.
    os.environ["NVIDIA_VISIBLE_DEVICES"] = "0,1,2"
    settled = ("--checkpoint-complete", "settled")
    marked = ("--checkpoint-complete", "marker", "--checkpoint-marker", "DONE")
    result = {
        "changes": changes,
        "cold_ms": measure(python, changes, settled, is_warm=False),
        "warm_ms": measure(python, changes, settled, is_warm=True),
        "warm_marker_ms": measure(python, changes, marked, is_warm=True),
        "warm_marker_1_3_ms": measure(python, changes, marked, is_warm=True, wide=(1, 3)),
        "aims_total_ms": AIMS_MS,
        **describe_machine(),
    }
    print_result(result, output)


if __name__ == "__main__":
    main()
