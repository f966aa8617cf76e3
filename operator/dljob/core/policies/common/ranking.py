"""
In which order jobs come that are known to end: by the time they still need, or by that x GPUs.

:mod:`dljob.core.policies.baselines.srtf` and its relatives order with it, and :mod:`dljob_lab.policies.elastic.afs.sharing`.

Results about a job are kept for as long as they stay true, because thousands may wait and
an event changes three of them.
"""

import heapq
import math
from collections.abc import Iterator
from typing import NamedTuple
from weakref import WeakKeyDictionary

from dljob.core.contract import View
from dljob.core.model import JobState
from dljob.core.policies.common.ordering import (
    Count,
    Left,
    Line,
    count_requested,
    fewest_needed,
    rank_types,
)
from dljob.core.predicting.conclusions import Kept
from dljob.core.queues import Block


def rank(view: View, *, by_service: bool = False, count: Count | None = None) -> Line:
    """
    Order all jobs by the time that they still need, or by that time x GPUs, ties by arrival.

    The time is the one predicted for the GPUs that a job requests, of the type that suits it best,
    for waiting and running jobs alike: if running jobs were ranked by the GPUs that they really got, a job
    that got a slower type would be overtaken, and overtake again as soon as it waits.

    With ``count``, for elastic jobs, the time is that on this number of GPUs, regardless of the GPUs that a
    job has now. Jobs of a higher priority then come before all others, and one of unknown length is
    supposed to have one.
    """
    rule = _Rule(by_service, count)
    paces = _kept.recall(lambda paces: paces.suits(view, rule), lambda: _Paces(view, rule))
    paces.prune(1000 + 4 * (len(view.pending) + len(view.running)))
    running = sorted([paces.entry(state, view.now, view=view) for state in view.running])
    blocks = [paces.rank_block(block, view) for block in view.pending.blocks]
    front: list[_Entry] = running
    if running:
        last = running[-1]
        # Only the first of a block is looked at in most: waiting jobs mostly rank behind all that run.
        ahead = [e for block in blocks if block[0] <= last for e in block if e <= last]
        front = sorted(running + ahead) if ahead else running

    def line(left: Left) -> Iterator[JobState]:
        yield from (entry.state for entry in front)
        # Only now, because in most decisions nothing is left for them.
        waiting = zip(view.pending.blocks, blocks, strict=True)
        fitting = [ranked for block, ranked in waiting if block.ask(fewest_needed) <= left.most]
        behind = heapq.merge(*fitting)
        yield from (
            e.state
            for e in behind
            if e.state.least <= left.most and not (running and e <= running[-1])
        )

    return line


class _Rule(NamedTuple):
    """The rule that orders jobs."""

    by_service: bool
    elastic: Count | None


class _Entry(NamedTuple):
    """A job and what it is ordered by."""

    behind: int
    """Its priority with the sign turned, where that is heeded."""
    key: float
    order: int
    state: JobState


class _Paces:
    """How fast jobs come nearer to their end, for as long as the profiles and cluster are the same."""

    def __init__(self, view: View, rule: _Rule) -> None:
        self.profiles = view.predictor.profiles
        self.cluster = view.cluster
        self.rule = rule
        self.paces: dict[JobState, float] = {}
        """Seconds, or GPU-seconds, an iteration."""
        self.waiting: dict[JobState, _Entry] = {}
        self.blocks: WeakKeyDictionary[Block[JobState], list[_Entry]] = WeakKeyDictionary()
        """Waiting jobs by their remaining need; it stays true for as long as they wait."""

    def suits(self, view: View, rule: _Rule) -> bool:
        """Return whether this is about the same things."""
        return (
            self.profiles is view.predictor.profiles
            and self.cluster is view.cluster
            and self.rule == rule
        )

    def rank_block(self, block: Block[JobState], view: View) -> list[_Entry]:
        """Order a few waiting jobs, once."""
        ranked = self.blocks.get(block)
        if ranked is None:
            # A block is one job different from its predecessor; the others are known from there.
            known = self.waiting
            entries = [known.get(state) or self._enter(state, view) for state in block]
            ranked = self.blocks[block] = sorted(entries)
        return ranked

    def _enter(self, state: JobState, view: View) -> _Entry:
        entry = self.waiting[state] = self.entry(state, state.observed_at, view=view)
        return entry

    def entry(self, state: JobState, now: float, *, view: View) -> _Entry:
        """The remaining need of the job at that time."""
        if self.rule.elastic is not None:
            gpus = self.rule.elastic(state, view)
            shape = view.predictor.shape(gpus, rank_types(state, gpus, view=view)[0])
            time = view.predictor.training_time(state, shape, now=now)
            key = time * gpus if self.rule.by_service else time
            return _Entry(-state.job.priority, key, state.order, state)
        pace = self.paces.get(state)
        if pace is None:
            pace = self.paces[state] = self._find_pace(state, view)
        left = state.remaining_at(now)
        return _Entry(0, left * pace if left > 0.0 else 0.0, state.order, state)

    def _find_pace(self, state: JobState, view: View) -> float:
        held = state.placement
        gpus = held.shape.gpus if held is not None else count_requested(state, view)
        shape = view.predictor.shape(gpus, rank_types(state, gpus, view=view)[0])
        speed = view.predictor.speed(state.job, shape)
        if speed <= 0.0:
            return math.inf
        return (gpus if self.rule.by_service else 1) / speed

    def prune(self, most: int) -> None:
        """Forget everything rather than hold too much."""
        if len(self.paces) > most:
            self.paces.clear()
            self.waiting.clear()


_kept: Kept[_Paces] = Kept(most=8)
