"""The output of a run at its begin and at its end, and the files that it keeps in ``.tests/``."""

import os
import platform
import subprocess
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from tests.running.notes import Result
from tests.running.output import say
from tests.running.supervising import Done

KEPT = Path(".tests")
FLAKY = KEPT / "flaky.txt"
MOST_FLAKY = 3
SLOWEST = 10
LAST_LINES = 15
"""Of the report of a failure."""
ADDITIONS = 10_000_000


@dataclass(frozen=True)
class Outcome:
    """The tests of a run, by how they ended."""

    passed: frozenset[str]
    skipped: frozenset[str]
    failed: frozenset[str]
    first_failures: dict[str, str]
    """By test, the report of its first failure."""


def sum_up(results: Iterable[Result]) -> Outcome:
    ran: set[str] = set()
    skipped: set[str] = set()
    failures: dict[str, str] = {}
    for each in results:
        if each.outcome == "failed":
            failures.setdefault(each.test, each.text)
        elif each.outcome == "skipped":
            skipped.add(each.test)
        elif each.phase == "call":
            ran.add(each.test)
    failed = frozenset(failures)
    return Outcome(frozenset(ran) - failed, frozenset(skipped) - failed, failed, failures)


def print_machine() -> None:
    begin = time.perf_counter()
    total = 0
    for number in range(ADDITIONS):
        total += number
    took = time.perf_counter() - begin
    load = Path("/proc/loadavg").read_text().split()[:3]
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    say(
        f"{_processor()}, {len(os.sched_getaffinity(0))} cores, {memory:.0f} GiB, load {' '.join(load)}; "
        f"ten million additions take {took:.2f} s; Python {platform.python_version()}"
    )


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text(errors="replace").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def print_steps(done: Sequence[Done], wall_s: float) -> None:
    """Print a table of the steps: what each took, and how it ended."""
    say(f"\n{'step':<20}{'seconds':>9}{'processor':>11}  result")
    for each in done:
        result = "done" if each.is_good else f"exit {each.status}"
        say(f"{each.step.name:<20}{each.seconds:>9.0f}{each.cpu_s:>11.0f}  {result}")
    say(f"{'in all':<20}{wall_s:>9.0f}{sum(each.cpu_s for each in done):>11.0f}")


def print_slowest(results: Iterable[Result]) -> None:
    taken: dict[str, tuple[float, float]] = {}
    for each in results:
        seconds, used = taken.get(each.test, (0.0, 0.0))
        taken[each.test] = seconds + each.seconds, used + each.cpu_s
    if not taken:
        return
    say("\nslowest tests (seconds, of processor)")
    for test, (seconds, used) in sorted(taken.items(), key=lambda item: -item[1][0])[:SLOWEST]:
        say(f"{seconds:>8.1f}{used:>8.1f}  {test}")


def print_failures(outcome: Outcome, flaky: frozenset[str]) -> None:
    """Name what failed twice and what failed once, with the end of each first report."""
    for test in sorted(outcome.failed):
        say(f"\n{'flaky' if test in flaky else 'FAILED'}: {test}")
        for line in outcome.first_failures[test].splitlines()[-LAST_LINES:]:
            say(f"    {line}")


def keep_flaky(outcome: Outcome, flaky: frozenset[str]) -> None:
    """Add the flaky tests to a file, which outlives this run."""
    if not flaky:
        return
    KEPT.mkdir(exist_ok=True)
    words = ("git", "rev-parse", "--short", "HEAD")
    asked = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)
    with FLAKY.open("a", encoding="utf-8") as file:
        for test in sorted(flaky):
            file.write(f"{datetime.now(UTC):%Y-%m-%d %H:%M} {asked.stdout.strip()} {test}\n")
            file.write(f"{outcome.first_failures[test]}\n\n")
