"""
A DistributedDataParallel training for the tests and the benchmark of live changes.

``python -m tests.sidecar.live_ddp JOURNAL``, with options as JSON in LIVE_DDP. Each rank appends its steps to the
journal. Without DLJOB_LIVE it goes on from the file ``resume``, and saves to ``save`` after the step ``stop``; under a
SideCar it saves when it has to, and goes on from the newest checkpoint. With ``alternates`` it passes a boundary after every third step
alone, and after another third only asks whether to save. Without JOURNAL it forks trainings for :class:`tests.sidecar.live_boards.Spares`, because each import of PyTorch
takes seconds.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import shutil
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from dljob import training

LENGTH = 96
BATCH = 12
CHECKPOINT = "state.pt"
ENDS_OF_STEPS = (lambda _step: False, training.should_save, training.boundary)
"""In turns, to compare them."""


def make_model(megabytes: float) -> Any:
    """Return a model whose parameters have about this size; without one, a small one with buffers."""
    if megabytes:
        width = 512
        layers = max(1, round(megabytes * 1e6 / 4 / width / width))
        return torch.nn.Sequential(
            *(torch.nn.Linear(width, width, bias=False) for _ in range(layers))
        )
    return torch.nn.Sequential(
        torch.nn.Linear(16, 32), torch.nn.GroupNorm(4, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1)
    )


def main(journal: str) -> None:
    options = json.loads(os.environ.get("LIVE_DDP", "{}"))
    megabytes = options.get("megabytes", 0)
    training.init_process_group("gloo")
    torch.manual_seed(0)
    model = make_model(megabytes)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=5, gamma=0.9)
    stop = options.get("stop")
    batches = training.batches(LENGTH, BATCH, seed=options.get("seed", 0), steps=stop)
    parts = {"model": model, "optimizer": optimizer, "scheduler": scheduler, "batches": batches}
    saved = find_checkpoint(options)
    if saved:
        for name, state in torch.load(saved).items():
            parts[name].load_state_dict(state)
        # The file is let go before the first step.
        del state
    net = training.live(*parts.values(), wrap=DistributedDataParallel)
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(LENGTH, 512 if megabytes else 16, generator=generator)
    y = x[:, :3].sum(dim=1, keepdim=True)
    with Path(journal).open("a", buffering=1, encoding="ascii") as lines:
        for batch in batches:
            began = time.monotonic()
            optimizer.zero_grad()
            loss = (net(x[batch.samples]) - y[batch.samples]).square().mean() * batch.weight
            loss.backward()
            optimizer.step()
            scheduler.step()
            time.sleep(options.get("pace", 0.0))
            told = {
                "pid": os.getpid(),
                "generation": os.environ.get("DLJOB_GENERATION"),
                "rank": training.rank(),
                "world": training.world_size(),
                "step": batch.step,
                "samples": batch.samples if batch.weight else [],
                "loss": loss.item().hex(),
                "began": began,
                "ended": time.monotonic(),
            }
            lines.write(json.dumps(told) + "\n")
            passes = training.boundary
            if options.get("alternates"):
                passes = ENDS_OF_STEPS[batch.step % 3]
            if passes(batch.step) and training.is_leader():
                save(parts, batch.step)
    if "save" in options and training.is_leader():
        torch.save({name: part.state_dict() for name, part in parts.items()}, options["save"])


def find_checkpoint(options: dict[str, Any]) -> str:
    """Return the file to go on from; none for a process that gets its state from others."""
    if "DLJOB_JOINS" in os.environ:
        return ""
    if newest := training.latest():
        return f"{newest}/{CHECKPOINT}"
    return "" if "DLJOB_LIVE" in os.environ else options.get("resume", "")


def save(parts: dict[str, Any], step: int) -> None:
    """Write a checkpoint for a SideCar, in the place of older ones."""
    older = [*training.folder().iterdir()]
    place = training.folder() / f"step-{step}"
    place.mkdir()
    torch.save({name: part.state_dict() for name, part in parts.items()}, place / CHECKPOINT)
    training.mark_complete(place)
    for each in older:
        shutil.rmtree(each)


def fork(journal: str, variables: dict[str, str]) -> int:
    """Return the number of a process that trains."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        os.environ.update(variables)
        main(journal)
        code = 0
    except SystemExit as left:
        code = int(left.code or 0)
    except BaseException:  # noqa: BLE001 - the fork must not go on with its parent's work
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(code)


def serve() -> None:
    """Fork and wait as each line of the input says, and answer with a number or null."""
    # DistributedDataParallel imports it at its first use.
    with contextlib.suppress(ImportError):
        importlib.import_module("torch._dynamo")
    ended: dict[int, int] = {}
    for line in sys.stdin:
        request = json.loads(line)
        answer: int | None
        if "journal" in request:
            answer = fork(request["journal"], request["variables"])
            # The number may be that of an earlier one.
            ended.pop(answer, None)
        else:
            pid = request["poll"]
            if pid not in ended and os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                ended[pid] = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            answer = ended.get(pid)
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    if sys.argv[1:]:
        main(sys.argv[1])
    else:
        serve()
