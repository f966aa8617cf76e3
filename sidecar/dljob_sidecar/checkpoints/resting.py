"""Finds out which files never rest, each of which keeps a whole folder from being confirmed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Callable

from dljob_sidecar.checkpoints.checkpoint_files import Mark, Snapshot, take_snapshot
from dljob_sidecar.checkpoints.recognizing.shapes import UNKNOWN_SECONDS, Shape
from dljob_sidecar.checkpoints.recognizing.signs import normalise
from dljob_sidecar.observing.file_threads import FileThread

MOST_NAMES = 64
LOOKS = 120
PERIOD_SECONDS = 1.0


class Rewrites:
    """
    Learns which names, without numbers, are rewritten all the time next to a confirmed checkpoint.

    A name is learned when one file was begun twice, no file of the name rested in between for as long as
    a first checkpoint has to, and no file of the confirmed checkpoint was written. So a late file of a
    checkpoint, which is begun once for each, is never learned. Growing does not begin a file again.
    """

    def __init__(self, shape: Shape) -> None:
        self.names: frozenset[str] = frozenset()
        self._shape = shape
        self._before = Snapshot("", {}, is_whole=False)
        self._seen_at = 0.0
        self._runs: dict[str, tuple[float, frozenset[str]]] = {}
        """The time of the last change of a name without rest, and its files that were begun."""

    def see(self, now: Snapshot) -> None:
        at, before = time.monotonic(), self._before
        is_late = at - self._seen_at >= UNKNOWN_SECONDS
        self._before, self._seen_at = now, at
        news = now.news_after(before)
        is_saving = any(normalise(name) in self._shape.names for name in news)
        # Between two looks that are far apart, a file may have rested.
        if before.gap or is_late or is_saving:
            self._runs.clear()
            return
        for name, mark in news.items():
            was, common = before.files.get(name), normalise(name)
            changed_at, begun = self._runs.get(common, (at, frozenset()))
            if at - changed_at >= UNKNOWN_SECONDS:
                begun = frozenset()
            if was is None or mark.inode != was.inode or mark.size < was.size:
                if name in begun and len(self.names) < MOST_NAMES:
                    self.names |= {common}
                begun |= {name}
            self._runs[common] = at, begun


async def learn(
    path: str, shape: Shape, *, thread: FileThread, hear: Callable[[frozenset[str]], None]
) -> None:
    """Look on after a trial, in which a file that is rewritten slowly only seems to grow."""
    rewrites = Rewrites(shape)
    for _ in range(LOOKS):
        await asyncio.sleep(PERIOD_SECONDS)
        hear(rewrites.names)
        if not thread.send(lambda: rewrites.see(take_snapshot(path)), lambda *_: None):
            return  # A look takes so long that files may rest unseen.


def find_resting(files: Mapping[str, Mark]) -> dict[str, float]:
    """Return the names without numbers whose files rest, and for how long before the last change."""
    written = sorted(files.items(), key=lambda each: each[1].written_ns)
    last_ns = {normalise(name): mark.written_ns for name, mark in written}
    rested = {name: (written[-1][1].written_ns - ns) / 1e9 for name, ns in last_ns.items()}
    return {name: seconds for name, seconds in rested.items() if seconds >= UNKNOWN_SECONDS}


def propose_files(files: Mapping[str, Mark], moving: str) -> str:
    """Return the advice to leave a file out, with a pattern for all others if one is clear."""
    common = {name.partition("/")[0] for name in find_resting(files)}
    is_clear = len(common) == 1 and normalise(moving).partition("/")[0] not in common
    pattern = repr(common.pop().replace("#", "*")) if is_clear else "a pattern for the checkpoints"
    return f"; if {moving} is no part of the checkpoint, set checkpoint.files to {pattern}"
