"""
A second simulator, small and independent, to check the first against.

It replays rigid jobs on GPUs that are only counted, with preemption free of charge, in plain
loops and exact numbers. It shares nothing with DLJob on purpose: an error in one is not in the
other. ``tests/sim/test_peers.py`` compares the two on every trace, and ``test_reference.py``
holds this one against figures made elsewhere with the Tiresias simulator.

The rules
---------

All that happens at one instant is taken together, completions first and then arrivals; then one
decision is made. A job that is larger than the cluster is left out. Ties keep the order of the
file.

``fifo``  strict order of arrival; the head of the line blocks, no job is preempted.
``fjf``   the same, but any job that fits may pass.
``srtf``  by remaining time: take what fits, skip what does not.
``srsf``  the same by remaining time x GPUs.
``tiresias``  Tiresias-L as its authors' simulator plays it. Three queues, bounded at 3250 and
7200 GPU-seconds attained, are served in turn, taking what fits and skipping what does not. The
following rules are nowhere written; they were found by comparing with the published figures, which
it then equals to the last digit:

* Inside a queue those that run come before those that wait, whenever they arrived: a job never
  loses its GPUs to one of its own queue that waits, unless it does not fit any more behind one
  of its own queue that runs. (In plain order of arrival the average of philly_7f04ca would be
  2.5 times as high.)
* Otherwise a queue keeps the order in which jobs came into it. One that is demoted goes to the
  end of the lower queue; one that is preempted keeps its place before those that waited already;
  one that starts goes behind those that run.
* Queues are looked at when a job arrives or completes, and at times made for it: after each
  decision, a running job that has trained ``s`` seconds in all asks for a look
  ``floor((bound - s) / gpus)`` seconds later. For a job with one GPU that is the instant at which
  it crosses the bound. For one with more it is later, because its ``s`` should have been
  multiplied by its GPUs; the published figures contain this slip (exact crossings raise the
  average by 13 % on philly_2869ce, by 0.8 % on philly_7f04ca and by 0.3 % on philly_0e4a51).
* A look demotes each job that has reached the bound of its queue by then, one queue at a time.
"""

import argparse
import csv
import gzip
import math
import sys
from bisect import bisect_left, insort
from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import NamedTuple, Protocol, TextIO

BOUNDS = (3250, 7200)
"""Where one queue of Tiresias-L ends and the next begins, in GPU-seconds."""

Seconds = int | Fraction


class Task(NamedTuple):
    """A job: when it comes, for how long it runs on its GPUs, how many they are."""

    submitted: Seconds
    duration: Seconds
    gpus: int


class Figures(NamedTuple):
    """
    The compared figures: completion times (mean and percentiles) and the length of the replay.
    """

    average: float
    p50: float
    p95: float
    p99: float
    makespan: float

    def __str__(self) -> str:
        whole = (f"{value:.0f}" for value in self[1:])
        return f"{self.average:.1f} {' '.join(whole)}"


def read_number(text: str) -> Seconds:
    """Read a number without rounding it."""
    value = Fraction(text)
    return int(value) if value.denominator == 1 else value


def open_text(path: Path) -> TextIO:
    """Open a plain or a gzipped file."""
    if path.suffix == ".gz":
        return gzip.open(path, "rt", encoding="utf-8", newline="")
    return path.open(encoding="utf-8", newline="")


def read_trace(path: Path) -> list[Task]:
    with open_text(path) as file:
        tasks = [
            Task(
                read_number(row["submit_time_s"]),
                read_number(row["duration_s"]),
                int(row["num_gpus"]),
            )
            for row in csv.DictReader(file)
        ]
    return sorted(tasks, key=lambda task: task.submitted)


class Line(Protocol):
    """
    A policy: the live tasks in its own order. It receives the events and decides which tasks run.
    """

    def arrive(self, task: int) -> None: ...

    def update(self, done: Sequence[int], trained: Sequence[Seconds]) -> None:
        """Take out those that are done, and go on from what the others have trained."""
        ...

    def decide(self) -> Sequence[int]:
        """Return the tasks that run from now on."""
        ...

    def next_look(self, trained: Sequence[Seconds]) -> Seconds | None:
        """In how many seconds it wants to be asked again, if nothing happens before."""
        ...


class Arrivals:
    """FIFO, or FJF where those that fit may pass. A running task stays."""

    def __init__(self, tasks: Sequence[Task], gpus: int, *, passing: bool) -> None:
        self.tasks, self.free, self.passing = tasks, gpus, passing
        self.waiting: list[int] = []
        self.running: list[int] = []

    def arrive(self, task: int) -> None:
        self.waiting.append(task)

    def update(self, done: Sequence[int], trained: Sequence[Seconds]) -> None:
        for task in done:
            self.running.remove(task)
            self.free += self.tasks[task].gpus

    def decide(self) -> Sequence[int]:
        left: list[int] = []
        for at, task in enumerate(self.waiting):
            if self.free == 0 or (left and not self.passing):
                left += self.waiting[at:]
                break
            if self.tasks[task].gpus > self.free:
                left.append(task)
                continue
            self.free -= self.tasks[task].gpus
            self.running.append(task)
        self.waiting = left
        return self.running

    def next_look(self, trained: Sequence[Seconds]) -> Seconds | None:
        return None


class Shortest:
    """SRTF, or SRSF where time counts as often as the GPUs it takes."""

    def __init__(self, tasks: Sequence[Task], gpus: int, *, by_service: bool) -> None:
        self.tasks, self.gpus = tasks, gpus
        self.weights = [task.gpus if by_service else 1 for task in tasks]
        self.keys = [
            task.duration * weight for task, weight in zip(tasks, self.weights, strict=True)
        ]
        self.line: list[tuple[Seconds, int]] = []
        self.running: list[int] = []

    def arrive(self, task: int) -> None:
        insort(self.line, (self.keys[task], task))

    def update(self, done: Sequence[int], trained: Sequence[Seconds]) -> None:
        # Only the keys of running tasks have changed.
        for task in self.running:
            del self.line[bisect_left(self.line, (self.keys[task], task))]
            self.keys[task] = (self.tasks[task].duration - trained[task]) * self.weights[task]
            if task not in done:
                self.arrive(task)

    def decide(self) -> Sequence[int]:
        self.running, free = [], self.gpus
        for _, task in self.line:
            if self.tasks[task].gpus <= free:
                free -= self.tasks[task].gpus
                self.running.append(task)
            if free == 0:
                break
        return self.running

    def next_look(self, trained: Sequence[Seconds]) -> Seconds | None:
        return None


class Queue:
    """A queue of Tiresias: those that run, then those that wait."""

    def __init__(self) -> None:
        self.running: list[int] = []
        self.waiting: list[int] = []

    def take(self, tasks: Sequence[Task], free: int) -> int:
        """Decide who runs, put the others behind them, and return how many GPUs stay free."""
        line = self.running + self.waiting
        chosen: list[int] = []
        passed: list[int] = []
        for at, task in enumerate(line):
            if free == 0:
                passed += line[at:]
                break
            if tasks[task].gpus > free:
                passed.append(task)
                continue
            free -= tasks[task].gpus
            chosen.append(task)
        self.running, self.waiting = chosen, passed
        return free


class Tiresias:
    """Tiresias-L."""

    def __init__(self, tasks: Sequence[Task], gpus: int) -> None:
        self.tasks, self.gpus = tasks, gpus
        self.queues = (Queue(), Queue(), Queue())

    def arrive(self, task: int) -> None:
        self.queues[0].waiting.append(task)

    def update(self, done: Sequence[int], trained: Sequence[Seconds]) -> None:
        for queue in self.queues:
            queue.running = [task for task in queue.running if task not in done]
        # From below, so that no task falls through two queues in one look.
        for level in reversed(range(len(BOUNDS))):
            self.demote(level, trained)

    def demote(self, level: int, trained: Sequence[Seconds]) -> None:
        """Move those that have reached the bound of their queue to the end of the next."""
        queue = self.queues[level]
        bound = BOUNDS[level]
        due = {task for task in queue.running if trained[task] * self.tasks[task].gpus >= bound}
        queue.running = [task for task in queue.running if task not in due]
        # The end of the next queue is behind those that wait in it, though they have GPUs so far.
        self.queues[level + 1].waiting += sorted(due)

    def decide(self) -> Sequence[int]:
        free = self.gpus
        for queue in self.queues:
            free = queue.take(self.tasks, free)
        return [task for queue in self.queues for task in queue.running]

    def next_look(self, trained: Sequence[Seconds]) -> Seconds | None:
        looks = [
            (bound - trained[task]) // self.tasks[task].gpus
            for queue, bound in zip(self.queues[:-1], BOUNDS, strict=True)
            for task in queue.running
        ]
        # A job of thousands of GPUs would ask for a look at once, for ever.
        return max(1, min(looks)) if looks else None


POLICIES: dict[str, Callable[[Sequence[Task], int], Line]] = {
    "fifo": partial(Arrivals, passing=False),
    "fjf": partial(Arrivals, passing=True),
    "srtf": partial(Shortest, by_service=False),
    "srsf": partial(Shortest, by_service=True),
    "tiresias": Tiresias,
}


def play(tasks: Sequence[Task], line: Line) -> list[Seconds]:
    """Play until all is done; return when each task completes."""
    ends: list[Seconds] = [0] * len(tasks)
    trained: list[Seconds] = [0] * len(tasks)
    running: Sequence[int] = []
    coming = 0
    now: Seconds = 0
    while coming < len(tasks) or running:
        moments = [now + tasks[task].duration - trained[task] for task in running]
        moments += [task.submitted for task in tasks[coming : coming + 1]]
        look = line.next_look(trained)
        then = min(moments if look is None else [*moments, now + look])
        for task in running:
            trained[task] += then - now
        now = then
        done = [task for task in running if trained[task] == tasks[task].duration]
        for task in done:
            ends[task] = now
        line.update(done, trained)
        while coming < len(tasks) and tasks[coming].submitted == now:
            line.arrive(coming)
            coming += 1
        running = tuple(line.decide())
    return ends


def replay(tasks: Sequence[Task], gpus: int, policy: str) -> Figures:
    """Play the tasks that fit into the cluster and sum up."""
    kept = [task for task in tasks if task.gpus <= gpus]
    ends = play(kept, POLICIES[policy](kept, gpus))
    times = sorted(end - task.submitted for end, task in zip(ends, kept, strict=True))
    count = len(times)
    return Figures(
        average=float(sum(times) / count),
        p50=float(times[count // 2]),
        p95=float(times[math.ceil(Fraction(95 * count, 100)) - 1]),
        p99=float(times[math.ceil(Fraction(99 * count, 100)) - 1]),
        makespan=float(max(ends) - kept[0].submitted),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Replay rigid jobs; a check on the simulator.")
    parser.add_argument("trace", type=Path, nargs="+")
    parser.add_argument("--gpus", type=int, default=64)
    parser.add_argument("--policy", choices=POLICIES, action="append")
    options = parser.parse_args()
    for trace in options.trace:
        tasks = read_trace(trace)
        for policy in options.policy or POLICIES:
            figures = replay(tasks, options.gpus, policy)
            sys.stdout.write(f"{trace.name.split('.')[0]} {policy} {figures}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
