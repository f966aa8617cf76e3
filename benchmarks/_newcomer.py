"""
A training of benchmarks/newcomers.py: it loads for long, warms up after each start, and computes nothing.

``python _newcomer.py FOLDER ITERATIONS SPEED SCALING LOAD_S WARM_UP_S WARM_UP_PACE SAVE_S``: one GPU does SPEED
iterations a second, n GPUs n to the power of SCALING times as many. Each start adds a line to FOLDER/starts.
"""

import os
import signal
import sys
import time
from pathlib import Path


def main() -> None:
    folder = Path(sys.argv[1])
    iterations, speed, scaling, load_s, warm_up_s, warm_up_pace, save_s = map(float, sys.argv[2:])
    folder.mkdir(parents=True, exist_ok=True)
    gpus = len(os.environ["CUDA_VISIBLE_DEVICES"].split(","))
    with (folder / "starts").open("a") as starts:
        print(gpus, time.time(), file=starts)
    time.sleep(load_s)
    checkpoint = folder / "iteration"
    iteration = int(checkpoint.read_text()) if checkpoint.exists() else 0
    wanted: list[bool] = []
    # Only now, as where a framework has to be loaded first.
    signal.signal(signal.SIGUSR1, lambda *_: wanted.append(True))
    due = began = time.monotonic()
    while iteration < iterations:
        pace = warm_up_pace if due - began < warm_up_s else 1.0
        due = max(due + 1.0 / (speed * gpus**scaling * pace), time.monotonic())
        time.sleep(max(0.0, due - time.monotonic()))
        iteration += 1
        print(f"step {iteration}", flush=True)
        if wanted:
            wanted.clear()
            time.sleep(save_s)
            part = checkpoint.with_suffix(".part")
            part.write_text(str(iteration))
            part.replace(checkpoint)


if __name__ == "__main__":
    main()
