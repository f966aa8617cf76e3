"""
A training that trains nothing and bears witness: what it had, when it lived, how far it came.

Every process of it appends to a log of its own, one line a write, so that each line from before a
SIGKILL is in the log after it. Times are of CLOCK_MONOTONIC, which all processes of a machine
share. A lock on a file represents each GPU: the kernel releases it when a process is gone and not
before. Runs without the project on its path.
"""

import argparse
import fcntl
import json
import os
import pathlib
import signal
import sys
import time

FROZEN_S = 10.0
"""A training that has saved and is not ended goes on after this time."""


class Witness:
    def __init__(self, folder, name):
        self._file = os.open(
            folder / f"{name}.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        )

    def say(self, what, **more):
        line = json.dumps({"what": what, "at": time.monotonic(), **more})
        os.write(self._file, f"{line}\n".encode())


def take_gpus(folder, gpus):
    """Return the first GPU that another process has, or none; the end of a process releases its locks."""
    for gpu in gpus:
        held = os.open(folder / f"{gpu}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return gpu
    return None


class Training:
    def __init__(self, options):
        self.options = options
        self.rank = int(os.environ["RANK"])
        self.wanted = ""
        node = os.environ["CHAOS_NODE"]
        self.gpus = [f"{node}:{gpu}" for gpu in os.environ["CUDA_VISIBLE_DEVICES"].split(",")]
        world = int(os.environ["WORLD_SIZE"])
        # All containers of a job have the same number of GPUs or nearly so.
        self.pause = options.seconds / (len(self.gpus) * world) ** 0.8
        self.saved = options.folder / "checkpoint" / "iteration"
        # The port identifies the start on every platform: no two starts receive the same one.
        start = os.environ["MASTER_PORT"]
        now = time.monotonic_ns()
        self.witness = Witness(options.witness, f"{options.job}.{now}.{self.rank}")
        signal.signal(signal.SIGUSR1, lambda *_: self.ask("save"))
        signal.signal(signal.SIGTERM, lambda *_: self.ask("end"))
        self.iteration = self.load()
        self.witness.say(
            "begin",
            job=options.job,
            start=start,
            rank=self.rank,
            world=world,
            gpus=self.gpus,
            iteration=self.iteration,
        )
        taken = take_gpus(options.witness, self.gpus)
        if taken is not None:
            self.witness.say("clash", gpu=taken)
            sys.exit(3)

    def ask(self, wish):
        self.wanted = "end" if "end" in (wish, self.wanted) else wish

    def load(self):
        return int(self.saved.read_text()) if self.saved.exists() else 0

    def save(self):
        """Save; the processes of other ranks only show that they have heard."""
        place = self.saved if self.rank == 0 else self.saved.with_name(f"rank-{self.rank}")
        part = place.with_suffix(".part")
        part.write_text(str(self.iteration))
        part.replace(place)
        if self.rank == 0:
            self.witness.say("saved", iteration=self.iteration)

    def run(self):
        while not self.is_done():
            if self.wanted == "end":
                self.end("ended", 143)
            if self.wanted == "save":
                self.be_saved()
                continue
            time.sleep(self.pause)
            self.step()
        if self.rank == 0:
            self.save()
        self.evaluate()
        self.end("done", 0)

    def evaluate(self):
        """Take time, and ignore signals."""
        until = time.monotonic() + self.options.evaluates
        while (left := until - time.monotonic()) > 0:
            time.sleep(min(left, 0.1))
            self.witness.say("alive")

    def is_done(self):
        if self.rank == 0:
            return self.iteration >= self.options.iterations
        return self.load() >= self.options.iterations

    def step(self):
        if self.rank > 0:
            self.witness.say("alive")
            return
        self.iteration += 1
        self.witness.say("step", iteration=self.iteration)
        sys.stdout.write(f"step {self.iteration}\n")
        sys.stdout.flush()
        if self.iteration % self.options.save_every == 0:
            self.save()

    def be_saved(self):
        """Save, then end or stand still until the end."""
        self.wanted = ""
        self.save()
        if self.options.ends_when_saved:
            self.end("ended", 0)
        until = time.monotonic() + FROZEN_S
        while not self.wanted and time.monotonic() < until:
            time.sleep(0.01)

    def end(self, why, status):
        self.witness.say(why, iteration=self.iteration)
        # At once: a kill before the end would hide that it is done.
        os._exit(status)


def main():
    known = argparse.ArgumentParser()
    known.add_argument("--job", required=True)
    known.add_argument("--folder", type=pathlib.Path, required=True)
    known.add_argument("--witness", type=pathlib.Path, required=True)
    known.add_argument("--iterations", type=int, required=True)
    known.add_argument("--seconds", type=float, default=0.04, help="per iteration, on one GPU")
    known.add_argument("--save-every", type=int, default=40)
    known.add_argument("--evaluates", type=float, default=0.0, help="seconds after the last step")
    known.add_argument("--ends-when-saved", action="store_true")
    options = known.parse_args()
    (options.folder / "checkpoint").mkdir(parents=True, exist_ok=True)
    Training(options).run()


if __name__ == "__main__":
    main()
