"""
The independent checker: it reads the logs of trainings, and names broken laws.

It knows nothing of controllers, SideCars or records. Besides the logs it gets the jobs with their
iterations, and the test's own kills with their times, which alone excuse repeated iterations.
"""

import json
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

UNSEEN_S = 1.0
"""The longest time in which a SideCar may not have noticed the end of its processes."""


@dataclass
class Life:
    """One process, from its first to its last line."""

    job: str
    start: str
    rank: int
    world: int
    gpus: tuple[str, ...]
    resumed_at: int
    begin: float
    last: float
    steps: list[int] = field(default_factory=list)
    saved: list[tuple[float, int]] = field(default_factory=list)
    ending: str = ""
    """``done``, ``ended``, ``clash`` with the GPU; empty if it was killed."""

    @property
    def reached(self) -> int:
        return self.steps[-1] if self.steps else self.resumed_at

    @property
    def kept(self) -> int:
        """The iterations that the next start need not repeat."""
        return self.saved[-1][1] if self.saved else self.resumed_at

    def __str__(self) -> str:
        gpus = ",".join(self.gpus)
        where = f"rank {self.rank} of start {self.start} on {gpus}"
        return f"{self.job} ({where}, {self.begin:.3f} to {self.last:.3f})"


class Disturbance(NamedTuple):
    """A kill of a part of a job by the test."""

    job: str
    at: float


@dataclass(frozen=True)
class Expected:
    """The submitted jobs, and the disturbances by the test."""

    iterations: Mapping[str, int]
    given_up: frozenset[str] = frozenset()
    """Cancelled jobs."""
    disturbances: tuple[Disturbance, ...] = ()
    outlived: float = math.inf
    """A job's end is known for so many kills of its SideCar. A Kubernetes pod keeps the last message of one former
    container."""
    is_hasty: bool = False
    """
    Jobs are asked to end at any moment of a start. The first step of a start is lost if it was under way then. If a start
    takes no step, an end that was asked for does not show that all was done before, so the next start finds it done again.
    """


def read_all(folder: Path) -> list[Life]:
    lives = [life for path in folder.glob("*.jsonl") if (life := read(path.read_text()))]
    return sorted(lives, key=lambda life: life.begin)


def read(text: str) -> Life | None:
    """Read one log; None if its process was killed before its first line."""
    lines = [json.loads(line) for line in text.splitlines() if line.endswith("}")]
    if not lines:
        return None
    first, *others = lines
    life = Life(
        job=first["job"],
        start=first["start"],
        rank=first["rank"],
        world=first["world"],
        gpus=tuple(first["gpus"]),
        resumed_at=first["iteration"],
        begin=first["at"],
        last=lines[-1]["at"],
    )
    for line in others:
        _add(life, line)
    return life


def _add(life: Life, line: Mapping[str, Any]) -> None:
    match line["what"]:
        case "step":
            life.steps.append(line["iteration"])
        case "saved":
            life.saved.append((line["at"], line["iteration"]))
        case "clash":
            life.ending = f"clash on {line['gpu']}"
        case "done" | "ended":
            life.ending = line["what"]


def find_broken_laws(lives: Iterable[Life], expected: Expected) -> list[str]:
    """One sentence for each broken law."""
    ordered = sorted(lives, key=lambda life: life.begin)
    by_job: dict[str, list[Life]] = defaultdict(list)
    for life in ordered:
        by_job[life.job].append(life)
    broken = [*_two_masters(ordered)]
    for job, of_job in by_job.items():
        broken += _lives_twice(of_job)
        broken += _wrong_numbers([life for life in of_job if life.rank == 0])
        broken += _lost_for_nothing([life for life in of_job if life.rank == 0], expected)
        broken += _begins_after_its_end(of_job, expected)
        if job not in expected.iterations:
            broken.append(f"{job} ran, and no user had asked for it")
    for job, iterations in expected.iterations.items():
        if job not in expected.given_up:
            broken += _unfinished(job, by_job[job], iterations)
    return broken


def count_changes(lives: Iterable[Life]) -> int:
    """How often the GPUs of a job changed from one start to the next."""
    changes = 0
    before: dict[str, frozenset[str]] = {}
    starts: dict[tuple[str, str], set[str]] = defaultdict(set)
    ordered = sorted(lives, key=lambda life: life.begin)
    for life in ordered:
        starts[life.job, life.start].update(life.gpus)
    for job, gpus in ((job, frozenset(gpus)) for (job, _), gpus in starts.items()):
        changes += before.get(job, gpus) != gpus
        before[job] = gpus
    return changes


def _two_masters(ordered: Iterable[Life]) -> Iterator[str]:
    holders: dict[str, Life] = {}
    for life in ordered:
        if life.ending.startswith("clash"):
            yield f"two masters: {life}: {life.ending}"
        for gpu in life.gpus:
            before = holders.get(gpu)
            if before is not None and before.last >= life.begin:
                yield f"two masters of {gpu}: {before} and {life}"
            if before is None or before.last < life.last:
                holders[gpu] = life


def _lives_twice(of_job: Iterable[Life]) -> Iterator[str]:
    """Only processes of one start of a job may live at a time, each rank once."""
    seen: list[Life] = []
    for life in of_job:
        for other in seen:
            is_same = other.start == life.start and other.rank != life.rank
            if other.last >= life.begin and not is_same:
                yield f"lives twice: {other} and {life}"
        seen.append(life)


def _wrong_numbers(leaders: Iterable[Life]) -> Iterator[str]:
    """Each start goes on from the last checkpoint, and counts one by one."""
    saved, reached = 0, 0
    for life in leaders:
        # It may be killed between saving and logging.
        if not saved <= life.resumed_at <= reached:
            yield f"{life} goes on from {life.resumed_at}, though {saved} was saved"
        if life.steps != list(range(life.resumed_at + 1, life.reached + 1)):
            yield f"{life} does not count one by one"
        saved, reached = max(life.kept, life.resumed_at), max(reached, life.reached)


def _lost_for_nothing(leaders: list[Life], expected: Expected) -> Iterator[str]:
    if leaders and leaders[0].job in expected.given_up:
        return
    # A start may be disturbed before its first line: other containers of it begin earlier.
    since = float("-inf")
    for life, after in zip(leaders, [*leaders[1:], None], strict=True):
        until = after.begin if after is not None else float("inf")
        kept = max(life.kept, after.resumed_at if after is not None else 0)
        excused = any(
            each.job == life.job and since <= each.at <= until for each in expected.disturbances
        )
        lost = life.reached - kept
        if expected.is_hasty and life.steps == [life.reached] and life.ending == "ended":
            lost = 0
        if lost > 0 and not excused:
            yield f"{life} came to {life.reached}, kept {kept}, and nothing had disturbed it"
        since = life.last


def _begins_after_its_end(of_job: list[Life], expected: Expected) -> Iterator[str]:
    """
    What was done is not done again, whatever was killed later.

    A SideCar that is killed together with the last processes of a start cannot know how they ended.
    """
    leaders = [life for life in of_job if life.rank == 0]
    for life, after in pairwise(leaders):
        end = UNSEEN_S + max(each.last for each in of_job if each.start == life.start)
        kills = [each.at for each in expected.disturbances if each.job == life.job]
        is_unseen = any(life.begin <= at <= end for at in kills)
        # Each was noted before and after it.
        later = sum(end < at <= after.begin for at in kills) // 2
        is_unshown = expected.is_hasty and not life.steps
        excused = life.job in expected.given_up or is_unseen or later > expected.outlived
        excused = excused or is_unshown
        if life.ending == "done" and not excused:
            yield f"{life} was done, and {after} began again"


def _unfinished(job: str, of_job: list[Life], iterations: int) -> Iterator[str]:
    leaders = [life for life in of_job if life.rank == 0]
    if not leaders:
        yield f"{job} never ran"
        return
    if max(life.reached for life in leaders) != iterations:
        yield f"{job} did not come to {iterations}, or went beyond"
    if leaders[-1].reached != iterations or leaders[-1].kept != iterations:
        yield f"{job}: its last start did not finish it: {leaders[-1]}"
    done = [life for life in leaders if life.reached == iterations and life.kept == iterations]
    if len(done) > 1 and not _only_ends_again(done):
        yield f"{job} was finished {len(done)} times: {done[1]}"


def _only_ends_again(done: list[Life]) -> bool:
    """Return whether the later ones found everything done, because the controller had missed the end."""
    return all(not life.steps for life in done[1:])
