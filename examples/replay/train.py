"""
Trains nothing, at the very speed at which a real model was measured.

Takes its speed from a table with the columns gpu_type, model, global_batch_size, num_gpus and
iterations_per_s. On SIGUSR1 it saves how far it is; a new start goes on from there. A job over
several nodes has to have one process a GPU, because each must know how many there are in all.
"""

import argparse
import csv
import os
import pathlib
import signal
import time


def read_options():
    options = argparse.ArgumentParser()
    options.add_argument("--speeds", type=pathlib.Path, required=True)
    options.add_argument("--gpu-type", default="A100")
    options.add_argument("--model", default="resnet50")
    options.add_argument("--batch", type=int, default=256)
    options.add_argument("--iterations", type=int, default=1000)
    options.add_argument("--faster", type=float, default=1.0, help="than it was measured")
    options.add_argument("--checkpoint", type=pathlib.Path, default="iteration")
    # What a framework would take that is not here, and a model that is saved; in seconds.
    options.add_argument("--initialization", type=float, default=0.0)
    options.add_argument("--initialization-per-gpu", type=float, default=0.0)
    options.add_argument("--saving", type=float, default=0.0)
    return options.parse_args()


def count_gpus():
    here = len(os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(","))
    return max(here, int(os.environ.get("WORLD_SIZE", "1")))


def find_speed(options, gpus):
    """Return the measured speed; between two measured numbers of GPUs, that of the smaller."""
    with options.speeds.open(newline="") as file:
        speeds = {
            int(row["num_gpus"]): float(row["iterations_per_s"])
            for row in csv.DictReader(file)
            if (row["gpu_type"], row["model"]) == (options.gpu_type, options.model)
            and int(row["global_batch_size"]) == options.batch
        }
    known = [number for number in speeds if number <= gpus]
    if not known:
        raise SystemExit(f"no speed of {options.model} on {gpus} {options.gpu_type}")
    return speeds[max(known)]


def save(options, iteration):
    time.sleep(options.saving / options.faster)
    temporary = options.checkpoint.with_suffix(".part")
    temporary.write_text(str(iteration))
    temporary.replace(options.checkpoint)


def main():
    options = read_options()
    gpus, is_leader = count_gpus(), os.environ.get("RANK", "0") == "0"
    seconds = 1.0 / (find_speed(options, gpus) * options.faster)
    options.checkpoint.parent.mkdir(parents=True, exist_ok=True)
    initialization = options.initialization + options.initialization_per_gpu * gpus
    time.sleep(initialization / options.faster)
    iteration = int(options.checkpoint.read_text()) if options.checkpoint.exists() else 0

    # Only now, as where a framework has to be loaded first: before, there is nothing to save.
    wanted = []
    signal.signal(signal.SIGUSR1, lambda *_: wanted.append(True))
    due = time.monotonic()
    while iteration < options.iterations:
        # By the clock and not by the pause, so that what we do ourselves costs nothing; but time
        # that was lost is not made up for.
        due = max(due + seconds, time.monotonic())
        time.sleep(max(0.0, due - time.monotonic()))
        iteration += 1
        if is_leader:
            print(f"step {iteration}", flush=True)
        if is_leader and (wanted or iteration == options.iterations):
            wanted.clear()
            save(options, iteration)
            due = time.monotonic()


if __name__ == "__main__":
    main()
