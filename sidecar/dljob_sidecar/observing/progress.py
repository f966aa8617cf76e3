"""
The progress and the speed of the training, from its own reports.

:class:`Meter` takes reports with a clock reading, and reads nothing itself. :func:`parse_groups`
makes a report from the groups of a regular expression, and :func:`parse_line` from a line of a
JSON-lines file. Unknown numbers become metrics.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace

from dljob_wire.kinds import LARGEST_WHOLE
from dljob_wire.messages import Post, Progress
from dljob_wire.speed_window import SpeedWindow

MOST_METRICS = 32
LARGEST_NUMBER = 1e300
"""The limit of the protocol: no reader accepts a state with a larger number."""

METRIC_NAME = re.compile(r"[A-Za-z_][0-9A-Za-z_./@-]{0,63}")
"""The metric names that the protocol accepts."""

# Other common names of the same quantity.
ITERATION_NAMES = ("iteration", "iterations", "step", "global_step", "iter")
EPOCH_NAMES = ("epoch", "epochs")
AMOUNT_NAMES = ("sample", "samples", "token", "tokens")
BATCH_NAMES = ("batchSize", "batch_size", "batch")

ENOUGH_STEPS = 20
SHORTEST_SECONDS = 60.0
FACTOR = 10.0


class Pauses:
    """
    The time without a step after which a training hangs, learnt from its steps since the latest start.

    That is ten times the longest pause, including evaluations and checkpoints, but at least a minute
    and at most ``stallSeconds``. Until enough steps were seen, it is ``stallSeconds``.
    """

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        self._steps = 0
        self._longest = 0.0
        self._moved_at: float | None = None

    def step(self, now: float) -> None:
        if self._moved_at is not None:
            self._longest = max(self._longest, now - self._moved_at)
        self._moved_at = now
        self._steps += 1

    def limit(self, stall_seconds: float) -> float:
        """Return the longest time without a step; 0 for no limit."""
        if self._steps < ENOUGH_STEPS:
            return stall_seconds
        learnt = max(SHORTEST_SECONDS, FACTOR * self._longest)
        return min(learnt, stall_seconds) if stall_seconds else learnt

    @property
    def longest(self) -> float:
        return self._longest


class NotProgress(ValueError):
    """A report that cannot be read as progress; the text gives the reason."""


def parse_groups(groups: Mapping[str, object]) -> Post:
    """
    Return the report in named values, without values that are no valid number.

    Numbers may be text with thousands separators.
    """
    numbers: dict[str, float] = {}
    for name, value in groups.items():
        number = to_number(value)
        if number is not None and METRIC_NAME.fullmatch(name):
            numbers[name] = number
    iteration = take(numbers, ITERATION_NAMES, most=LARGEST_WHOLE)
    batch_size = take(numbers, BATCH_NAMES, most=LARGEST_WHOLE)
    return Post(
        iteration=None if iteration is None else int(iteration),
        epoch=take(numbers, EPOCH_NAMES),
        batch_size=None if batch_size is None else int(batch_size),
        metrics=dict(list(numbers.items())[:MOST_METRICS]),
    )


def in_iterations(post: Post, amount: int) -> Post:
    """
    Convert a number of samples or tokens into iterations of ``amount`` each.

    If each process has a fixed batch size, a step of the training is larger on more GPUs. Counted
    in such steps, neither length nor speed would be comparable after a change of GPUs.
    """
    if not amount:
        return post
    numbers = dict(post.metrics)
    told = take(numbers, AMOUNT_NAMES, most=LARGEST_WHOLE)
    if told is None:
        return post
    return replace(post, iteration=int(told // amount), metrics=numbers)


class Epochs:
    """
    Counts epochs as iterations where a training reports no iterations, once an epoch has passed without any.

    Most trainings print the number of an epoch before the steps in it.
    """

    def __init__(self, length: int) -> None:
        """``length`` is the number of iterations of an epoch; 0 if unknown, and then epochs do not count."""
        self._length = length
        self._latest: float | None = None
        self._has_iterations = False

    def in_iterations(self, post: Post) -> Post:
        self._has_iterations = self._has_iterations or post.iteration is not None
        if post.epoch is None or self._has_iterations:
            return post
        has_passed = self._latest not in (None, post.epoch)
        self._latest = post.epoch
        if not (has_passed and self._length):
            return post
        return replace(post, iteration=int(min(post.epoch * self._length, LARGEST_WHOLE)))


def to_number(value: object) -> float | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, str):
        value = value.replace(",", "").replace("_", "").strip().rstrip("%")
    elif not isinstance(value, (int, float)):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if abs(number) <= LARGEST_NUMBER else None


def take(
    numbers: dict[str, float], names: tuple[str, ...], *, most: float = LARGEST_NUMBER
) -> float | None:
    """Remove the first of the names that has a number from 0 to ``most``, and return the number."""
    for name in names:
        if 0 <= numbers.get(name, -1.0) <= most:
            return numbers.pop(name)
    return None


def parse_line(line: bytes) -> Post:
    """Return the report in one line of a JSON-lines file."""
    try:
        document = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise NotProgress(f"not JSON: {error}") from error
    if not isinstance(document, dict):
        raise NotProgress("not a JSON object")
    flat = {key: value for key, value in document.items() if not isinstance(value, dict)}
    metrics = document.get("metrics")
    if isinstance(metrics, dict):
        flat.update({str(key): value for key, value in metrics.items()})
    return parse_groups(flat)


MOST_ROUNDS = 1000


class Rounds:
    """
    Counts on over a counter that begins again in the same start of the training, as a bar of tqdm does in each epoch.

    A fall to less than half begins a round; smaller ones are lines of ranks that come out of order. A round counts for
    good only if it becomes about as long as the one before: the bar of an evaluation is shorter, and its steps are taken
    back with the next fall. A jump means that the counter before goes on.
    """

    def __init__(self) -> None:
        self._lengths: list[int] = []
        """Of the rounds that are over."""
        self._highest = 0
        """The highest number of the present round."""
        self._next: int | None = None
        """The highest number since a fall, until it is clear whether this is the next round."""

    def count(self, number: int, *, counted: int, is_first: bool) -> int:
        """Return the iterations of all rounds; ``counted`` is the latest result, ``is_first`` begins a start."""
        if is_first:
            self._resume(number, counted)
        elif self._next is None and number >= self._highest / 2:
            self._highest = max(self._highest, number)
        elif self._next is not None and number - self._next > self._highest / 2:
            self._highest, self._next = max(self._highest, number), None
        else:
            is_fall = self._next is None or number < self._next / 2
            self._next = number if is_fall else max(self._next or 0, number)
            if self._next >= 0.9 * self._highest:
                self._lengths = [*self._lengths[-MOST_ROUNDS:], self._highest]
                self._highest, self._next = self._next, None
        return self.recall(number)

    @property
    def lap(self) -> int:
        """The length of the round before the present one, as far as known; 0 if there was none."""
        if self._next is not None:
            return self._highest
        return self._lengths[-1] if self._lengths else 0

    def recall(self, number: int) -> int:
        """Return the iterations of all rounds for a number of the present one."""
        before = sum(self._lengths) + (0 if self._next is None else self._highest)
        return min(before + number, LARGEST_WHOLE)

    def _resume(self, number: int, counted: int) -> None:
        """Find the round of a start, which resumes near the latest report or before it; a low number is a new beginning."""
        if self._next is not None:
            self._lengths, self._highest = [*self._lengths, self._highest], self._next
        self._next = None
        if number < self._highest / 10:
            self._lengths = []
        while self._lengths and self.recall(number) > counted + self._lengths[-1] / 4:
            self._lengths.pop()
        self._highest = number


class Meter:
    """
    Folds reports into progress and speed.

    A new start clears what was measured of the speed.
    """

    def __init__(self, *, stall_seconds: float = 0.0) -> None:
        self._stall_seconds = stall_seconds
        self.iteration: int | None = None
        self.epoch: float | None = None
        self.batch_size: int | None = None
        self.metrics: dict[str, float] = {}
        self.has_observed = False
        """True if the training has reported anything since the latest start."""
        self.has_reported = False
        """True if it has done so in an earlier start."""
        self._moved_at: float | None = None
        self._speed = SpeedWindow()
        self._interval = 0
        self._rounds = Rounds()
        self.pauses = Pauses()

    def begin(self, now: float) -> None:
        """Begin a new start, for which earlier measurements of the speed do not count."""
        self.measure_anew(now)
        self.has_reported = self.has_reported or self.has_observed
        self.has_observed = False

    def measure_anew(self, now: float) -> None:
        """Forget the speed and the pauses, which other processes or another number of them had."""
        self._speed = SpeedWindow()
        self._moved_at = now
        self._interval = 0
        self.pauses.begin()

    def end(self) -> None:
        """End stall detection when no process runs; the last progress stays readable."""
        self._moved_at = None
        self._speed = SpeedWindow()

    def observe(self, now: float, seen: Post) -> None:
        if seen == Post():
            return
        # After a start, the training may report again the work that followed the checkpoint.
        is_first, self.has_observed = not self.has_observed, True
        if seen.iteration is not None:
            counted = self._rounds.count(
                seen.iteration, counted=self.iteration or 0, is_first=is_first
            )
            seen = replace(seen, iteration=counted)
        if is_first or self._has_moved(seen):
            self._moved_at = now
            self.pauses.step(now)
        if seen.iteration is not None:
            step = seen.iteration - (self.iteration or 0)
            # Lines that are read together hide some reports, so the smallest interval counts.
            if not is_first and step > 0:
                self._interval = min(self._interval or step, step)
            self._speed.add(now, seen.iteration)
        self._keep(seen)

    def recall(self, seen: Post) -> None:
        """Take a report of the previous start, which does not count for the present speed."""
        if seen.iteration is not None:
            seen = replace(seen, iteration=self._rounds.recall(seen.iteration))
        self._keep(seen)

    def _keep(self, seen: Post) -> None:
        if seen.epoch is not None:
            self.epoch = seen.epoch
        if seen.batch_size is not None:
            self.batch_size = seen.batch_size
        for name, value in seen.metrics.items():
            if name in self.metrics or len(self.metrics) < MOST_METRICS:
                self.metrics[name] = value
        if seen.iteration is not None:
            self.iteration = seen.iteration

    def _has_moved(self, seen: Post) -> bool:
        if seen.iteration is not None:
            return seen.iteration != self.iteration
        if seen.epoch is not None:
            return seen.epoch != self.epoch
        return True

    def progress(self, now: float) -> Progress:
        """Return the progress in the form of the protocol."""
        idle = 0.0 if self._moved_at is None else max(0.0, now - self._moved_at)
        return Progress(
            iteration=self.iteration or 0,
            epoch=self.epoch or 0.0,
            batch_size=self.batch_size or 0,
            metrics=dict(self.metrics),
            iterations_per_second=self.iterations_per_second or 0.0,
            idle_seconds=idle,
            begun=self.has_observed,
            stalled=0 < self._stall_seconds <= idle,
            interval=self._interval,
            lap=self._rounds.lap,
        )

    @property
    def iterations_per_second(self) -> float | None:
        """The speed; None until two different iterations were reported since the start."""
        return self._speed.iterations_per_second
