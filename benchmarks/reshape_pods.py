"""
From the decision to the first step of a real PyTorch DDP job that grows from 1 to 4 over two pods.

Two SideCars on this machine are the two pods: the job has one process in the first, and then two in each, or
one in the first and three in the second, which is new and whose interpreters wait already.
The commands are those of a controller on Kubernetes: the first pod gets the command to stop, with the announced next
start, and when it has released everything both get the command to run. The training is DDP over gloo, on the
processor; it saves itself on SIGUSR1 with ``torch.save``, and goes on from that.

``cold`` starts interpreters, ``warm`` has them wait with PyTorch imported, as many in each pod as the node
has GPUs, and ``warm_marker`` confirms the checkpoint by a marker instead of by files that have settled.
``warm_marker_1_3`` has three of the four processes in the new pod. In ``new_pod_awaited`` the new pod comes up
with each change, and the training goes on until a controller would take it for warm (``until_warm``, and the phases are
those of the pause after it); in ``new_pod_at_once`` the training stops as soon as the SideCar of the new pod answers. Before the first change the checkpoint is tried, as a
controller does; ``first_warm_untried`` is the first change of a job without that trial, whose files have to settle for longer,
and ``first_warm`` the one after it. Phases are those of the slowest process, by one clock of the machine.
``processor_until_imported`` is the processor time of one process until its imports are done: a cold start needs four times
as much, and no order of steps lowers that. Nothing of a real network or of GPUs is in it.
"""

import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import click
from _measuring import describe_machine, print_result
from _progress import ROOT, CannotRun, run
from _sidecars import FIRST_PORT, LONGEST_S, TELL, SideCar, Tellings

from dljob.control.pacing import Pace
from dljob.control.situation.dialer import Contact
from dljob.control.situation.job_pods import JobPod
from dljob.control.situation.ports import Pod, PodKey, PodPhase
from dljob.control.situation.status import Booking
from dljob.core.model import JobId, NodeName
from dljob_wire import codec
from dljob_wire.messages import Peer, Run, Saving, State, Stop

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
tell("spent", time.process_time())

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
PHASES = ("begun", "imported", "spent", "met", "built", "step")


class Pods:
    """The two pods of the job, and the generation that was declared last."""

    def __init__(self, first: SideCar, second: SideCar, tellings: Tellings) -> None:
        self.first, self.second = first, second
        self._tellings = tellings
        self._generation = 0

    def run(self, *processes: int) -> dict[str, float]:
        """Command the first pods to run these numbers of processes; return when the last one reached each stage."""
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
        """Return a pod to stop, and return when it has released everything."""
        self._generation += 1
        stop = Stop(1, self._generation, pod.incarnation, checkpoint=checkpoint, coming=coming)
        pod.ask("PUT", "/v1/target", codec.encode_target(stop))
        return pod.wait_for(lambda state: state.released, "the pod has released its GPUs")

    def try_checkpoint(self) -> None:
        """Have the first pod save itself and go on, as a controller does before the first change of a job."""
        run = self.first.state().target
        assert isinstance(run, Run)
        self.first.ask("PUT", "/v1/target", codec.encode_target(replace(run, trial=1)))
        tried = self.first.wait_for(_is_tried, "the checkpoint is tried").trial
        if tried is None or tried.saving is not Saving.CONFIRMED:
            raise RuntimeError(f"the trial of the checkpoint fails: {tried}")

    def wait_warm(self, *spares: int) -> None:
        for pod, count in zip((self.first, self.second), spares, strict=True):
            pod.wait_for(partial(_has_spares, count=count), f"{count} interpreters are warm")


def _has_spares(state: State, count: int) -> bool:
    return state.warmth.ready >= count


def _is_tried(state: State) -> bool:
    return state.trial is not None and state.trial.saving is not Saving.NONE


class NewPods:
    """Pods that come up in the middle of a change."""

    def __init__(self, folder: Path, command: Sequence[str], options: Mapping[str, Any]) -> None:
        self._folder = folder
        self._command = command
        self._options = options
        self._started = 0

    def start(self, *, waits: bool) -> SideCar:
        """Return the next one when a controller would begin to start the training in it."""
        self._started += 1
        folder = self._folder / f"new-{self._started}"
        folder.mkdir()
        pod = SideCar(folder, self._command, options=self._options)
        pod.wait_ready()
        first_seen = time.monotonic()
        if waits:
            pod.wait_for(lambda state: _is_warm(state, first_seen), "the new pod is warm")
        return pod


def _is_warm(state: State, first_seen: float) -> bool:
    key = PodKey(JobId("job"), NodeName("new"))
    contact = Contact(state, reachable=True, first_seen=first_seen)
    job_pod = JobPod(key, Booking(key.node, 1), Pod(key, PodPhase.UP), contact)
    return job_pod.is_warm(Pace().warm_seconds, time.monotonic())


def measure_new_pods(
    python: str, changes: int, options: Mapping[str, Any], *, waits: bool
) -> dict[str, Any]:
    """Let the job grow from one process to one and three in a pod that comes up for it."""
    with tempfile.TemporaryDirectory() as name, Tellings(Path(name)) as tellings:
        root = Path(name)
        command, given = _prepare(python, root, tellings, options=options, is_warm=True)
        new_pods = NewPods(root, command, {**given, "mostSpares": 3})
        with SideCar(root / "first", command, options={**given, "mostSpares": 1}) as first:
            first.wait_ready()
            pods = Pods(first, first, tellings)
            pods.run(1)
            pods.try_checkpoint()
            found = [_grow_onto(new_pods, pods, waits=waits) for _ in range(changes)]
    return _sum_up(found)


def _grow_onto(new_pods: NewPods, pods: Pods, *, waits: bool) -> dict[str, float]:
    """Go from one process to one and three in a new pod, and back; return the milliseconds of the way up."""
    pods.first.wait_for(partial(_has_spares, count=1), "an interpreter is warm")
    decided = time.monotonic()
    with new_pods.start(waits=waits) as pods.second:
        until_warm = 1000.0 * (time.monotonic() - decided)
        phases = _widen(pods, (1, 3))
        _narrow(pods)
    return {"until_warm": until_warm, **phases}


def _sum_up(found: Sequence[dict[str, float]]) -> dict[str, Any]:
    return {phase: round(statistics.median(one[phase] for one in found)) for phase in found[0]}


def _prepare(
    python: str, root: Path, tellings: Tellings, *, options: Mapping[str, Any], is_warm: bool
) -> tuple[list[str], dict[str, Any]]:
    """Write the training; return its command, and the options of its SideCars."""
    checkpoints = root / "checkpoints"
    script = root / "train.py"
    script.write_text(TRAINING, encoding="utf-8")
    given = {
        "processes": "perGpu",
        "checkpoint.signal": "SIGUSR1",
        "checkpoint.confirm": "file",
        "checkpoint.path": str(checkpoints),
        "checkpoint.files": "checkpoint-*",
        "checkpoint.timeoutSeconds": LONGEST_S,
        "preload": ["torch", "torch.distributed"] if is_warm else [],
        **options,
    }
    for folder in (root / "first", root / "second", checkpoints):
        folder.mkdir()
    return [python, str(script), str(tellings.path), str(checkpoints)], given


def measure(
    python: str,
    changes: int,
    options: Mapping[str, Any],
    *,
    is_warm: bool,
    is_tried: bool = True,
    wide: tuple[int, int] = (2, 2),
) -> dict[str, Any]:
    """Let the job grow several times, and report the phases of each."""
    with tempfile.TemporaryDirectory() as name, Tellings(Path(name)) as tellings:
        root = Path(name)
        command, given = _prepare(python, root, tellings, options=options, is_warm=is_warm)
        with (
            SideCar(root / "first", command, options={**given, "mostSpares": wide[0]}) as first,
            SideCar(root / "second", command, options={**given, "mostSpares": wide[1]}) as second,
        ):
            first.wait_ready()
            second.wait_ready()
            pods = Pods(first, second, tellings)
            pods.run(1)
            if is_tried:
                pods.try_checkpoint()
            found = [_grow(pods, wide, is_warm=is_warm) for _ in range(changes)]
    return _sum_up(found)


def _grow(pods: Pods, wide: tuple[int, int], *, is_warm: bool) -> dict[str, float]:
    """Go from one process to ``wide`` in the pods and back; return the milliseconds of the way up."""
    if is_warm:
        pods.wait_warm(*wide)
    phases = _widen(pods, wide)
    states = (pods.first.state(), pods.second.state())
    warm = [process.warm for state in states for process in state.processes]
    if warm != [is_warm] * 4:
        raise RuntimeError(f"not as they should have started: warm are {warm}")
    _narrow(pods)
    return phases


def _widen(pods: Pods, wide: tuple[int, int]) -> dict[str, float]:
    """Go from one process to ``wide`` in the pods; return the milliseconds."""
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
        "processor_until_imported": moments["spent"],
        "meeting": moments["met"] - moments["imported"],
        "model_and_checkpoint": moments["built"] - moments["met"],
        "first_step": moments["step"] - moments["built"],
        "total": moments["step"] - decided,
    }
    return {phase: 1000.0 * seconds for phase, seconds in phases.items()}


def _narrow(pods: Pods) -> None:
    """Go back to one process."""
    pods.stop(pods.first, checkpoint=True, coming=1)
    pods.stop(pods.second, checkpoint=False)
    pods.run(1)


def find_python() -> str:
    """Return the interpreter of `make test-frameworks`, or else python3."""
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
        raise CannotRun(f"{python} has no PyTorch; `make test-frameworks` installs one")
    # As in a container with three GPUs: this many interpreters wait before the first run.
    os.environ["NVIDIA_VISIBLE_DEVICES"] = "0,1,2"
    settled = {"checkpoint.complete": "settled"}
    marked = {"checkpoint.complete": "marker", "checkpoint.marker": "DONE"}
    result = {
        "changes": changes,
        "cold_ms": measure(python, changes, settled, is_warm=False),
        "first_warm_untried_ms": measure(python, 1, settled, is_warm=True, is_tried=False),
        "first_warm_ms": measure(python, 1, settled, is_warm=True),
        "warm_ms": measure(python, changes, settled, is_warm=True),
        "warm_marker_ms": measure(python, changes, marked, is_warm=True),
        "warm_marker_1_3_ms": measure(python, changes, marked, is_warm=True, wide=(1, 3)),
        "new_pod_at_once_ms": measure_new_pods(python, changes, marked, waits=False),
        "new_pod_awaited_ms": measure_new_pods(python, changes, marked, waits=True),
        "aims_total_ms": AIMS_MS,
        **describe_machine(),
    }
    print_result(result, output)


if __name__ == "__main__":
    run(main)
