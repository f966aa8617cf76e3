"""Interleavings at the end of a start, without processes."""

from __future__ import annotations

import asyncio
import errno
import os
from typing import Any

from dljob_sidecar.behaviour.events import Gone
from dljob_sidecar.linux.spawning import Reaper
from dljob_sidecar.processes import starting
from dljob_sidecar.processes.ranks import RankProcess
from dljob_sidecar.processes.release_proof import ReleaseProof
from tests.sidecar.clients import live_through


class Nothing:
    """A process_tree without members and a reaper that collects no child."""

    collected = 0

    def reap(self):
        pass

    def members(self):
        return []

    def kill(self):
        return []


class Memory:
    """GPUs that answer when the test says so."""

    class release:  # noqa: N801 - as the product's attribute
        bases: tuple[str, ...] = ("gpu",)

    def __init__(self):
        self.asked = []

    def begin(self, _attempt):
        pass

    def end(self):
        self.asked.clear()

    def ask(self, hear):
        self.asked.append(hear)


def make_proof(memory, reported):
    nothing: Any = Nothing()
    return ReleaseProof(
        reaper=nothing,
        process_tree=nothing,
        memory=memory,
        tell=reported.append,
        ranks_live=lambda: False,
        is_settling=lambda: False,
        is_output_pending=lambda: False,
    )


def test_late_look_does_not_end_the_next_start():
    async def story():
        reported: list[object] = []
        memory = Memory()
        proof = make_proof(memory, reported)

        async def until_asked(count):
            while len(memory.asked) < count:
                await asyncio.sleep(0)

        proof.begin(1)
        proof.look_soon()
        await until_asked(1)
        # A kill during the first question causes a second one.
        proof.kill()
        await until_asked(2)
        first, second = memory.asked
        first(is_confirmed=False)
        second(is_confirmed=True)
        assert reported == [Gone(1)]
        # The next start has no process yet, because it waits for its admission.
        proof.begin(2)
        memory.release.bases = ()
        for _ in range(50):
            await asyncio.sleep(0.002)
        assert reported == [Gone(1)]
        assert proof.is_due

    try:
        live_through(story())
    finally:
        Memory.release.bases = ("gpu",)


def test_spare_without_pid_is_not_killed(monkeypatch):
    """Id 0 would be the process group of the SideCar itself."""

    class Rank:
        rank = local_rank = 0
        gpus = own_gpus = ()
        environment = {}  # noqa: RUF012 - nothing writes there

    sent = []
    monkeypatch.setattr(starting, "send", lambda *what: sent.append(what))
    nothing: Any = None
    starter = starting.RankStarter(
        nothing,
        nothing,
        outputs=nothing,
        reaper=nothing,
        spare_pool=nothing,
        tell=nothing,
        on_end=nothing,
        look_soon=nothing,
    )
    starter.begin(1)
    rank: Any = Rank
    trainer = RankProcess(rank)
    starter._hear_warm(trainer, 1, fault="its answers ended")
    assert sent == []
    trainer.pid = 4711
    starter._hear_warm(trainer, 1, fault="its answers ended")
    assert [pid for pid, _ in sent] == [4711]


def test_failing_listener_does_not_affect_others(monkeypatch, caplog):
    statuses = [(11, 0), (12, 0), (0, 0)]
    monkeypatch.setattr(os, "waitpid", lambda *_: statuses.pop(0))
    heard: list[Any] = []

    def fail(_ended):
        raise OSError(errno.EMFILE, "Too many open files")

    reaper = Reaper()
    reaper.watch(11, fail)
    reaper.watch(12, heard.append)
    reaper.reap()
    assert [ended.code for ended in heard] == [0]
    assert "Too many open files" in caplog.text
