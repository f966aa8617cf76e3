"""The table of the SideCar's behaviour: the reaction to each trigger in each phase."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType
from typing import NamedTuple

from dljob_wire.messages import (
    Phase,
)


class Trigger(Enum):
    """The kinds of events that the table distinguishes."""

    RUN = "a command to run"
    STOP = "a command to stop"
    LEAVE = "a command to leave"
    CHANGE = "a newer command"
    CHANGE_UNSAVED = "a newer command, without a checkpoint"
    LIVE = "a newer command, live"
    TRY = "a command to try its checkpoint"
    TRY_LIVE = "a command to try a live change"
    STARTED = "all started"
    STARTED_TO_JOIN = "all started to join others"
    START_FAILED = "a start failed"
    RANK_ENDED = "a rank ended well"
    RANK_FAILED = "a rank ended badly"
    ALL_ENDED = "the last rank ended"
    SAVED = "checkpoint confirmed"
    NOT_SAVED = "checkpoint failed"
    SAVING_TIMED_OUT = "checkpoint too slow"
    GATHERED = "all ready to change"
    CHANGED = "changed live"
    CHANGE_REFUSED = "cannot change live"
    CHANGE_FAILED = "live change failed"
    CHANGE_TIMED_OUT = "live change too slow"
    WITHDRAWN = "live change withdrawn"
    GRACE_OVER = "grace is over"
    STILL_THERE = "still not gone"
    GONE_TO_RUN = "all gone, a newer run waits"
    GONE_TO_STOP = "all gone, as declared"
    GONE_TO_LEAVE = "all gone, leaving"
    GONE_WELL = "all gone by themselves"
    GONE_WELL_TO_LEAVE = "all gone by themselves, leaving"
    GONE_BADLY = "all gone after a failure"


class Verb(Enum):
    """The reactions of the table, which :func:`react` turns into actions."""

    START = "start"
    SAVE = "checkpoint"
    TRY = "checkpoint and go on"
    GIVE_UP = "wait no longer"
    CHANGE = "change live"
    TRY_LIVE = "change live with the same members"
    AWAIT = "wait for the others"
    HURRY = "limit the pause"
    WITHDRAW = "withdraw"
    END = "terminate"
    KILL = "kill"
    LEAVE = "leave"


class Row(NamedTuple):
    phase: Phase
    verbs: tuple[Verb, ...] = ()


_START = Row(Phase.STARTING, (Verb.START,))


_END = Row(Phase.STOPPING, (Verb.END,))


_KILL = Row(Phase.STOPPING, (Verb.KILL,))


def _quiet(phase: Phase) -> Mapping[Trigger, Row]:
    """Return the rows of a phase without living processes; the last outcome stays known."""
    stopped = Phase.STOPPED if phase is Phase.READY else phase
    return {
        Trigger.RUN: _START,
        Trigger.STOP: Row(stopped),
        Trigger.LEAVE: Row(stopped, (Verb.LEAVE,)),
    }


TABLE: Mapping[Phase, Mapping[Trigger, Row]] = MappingProxyType(
    {
        Phase.READY: _quiet(Phase.READY),
        Phase.STARTING: {
            Trigger.STARTED: Row(Phase.RUNNING),
            Trigger.STARTED_TO_JOIN: Row(Phase.CHANGING, (Verb.AWAIT,)),
            Trigger.START_FAILED: _END,
            Trigger.RANK_ENDED: Row(Phase.STARTING),
            Trigger.RANK_FAILED: _END,
            # A supervisor never reports the last end before the start; if it did, the remaining
            # processes would have to end before the proof.
            Trigger.ALL_ENDED: _END,
            # There is no progress yet to save.
            Trigger.CHANGE: _END,
            Trigger.CHANGE_UNSAVED: _END,
        },
        Phase.RUNNING: {
            Trigger.RANK_ENDED: Row(Phase.RUNNING),
            # The other ranks would wait for the failed one forever, and a checkpoint may need it.
            Trigger.RANK_FAILED: _END,
            Trigger.ALL_ENDED: _END,
            Trigger.TRY: Row(Phase.RUNNING, (Verb.TRY,)),
            Trigger.SAVED: Row(Phase.RUNNING),
            Trigger.NOT_SAVED: Row(Phase.RUNNING),
            Trigger.SAVING_TIMED_OUT: Row(Phase.RUNNING, (Verb.GIVE_UP,)),
            Trigger.CHANGE: Row(Phase.CHECKPOINTING, (Verb.SAVE,)),
            Trigger.CHANGE_UNSAVED: _END,
            Trigger.LIVE: Row(Phase.CHANGING, (Verb.CHANGE,)),
            Trigger.TRY_LIVE: Row(Phase.RUNNING, (Verb.TRY_LIVE,)),
            Trigger.CHANGED: Row(Phase.RUNNING),
            Trigger.CHANGE_REFUSED: Row(Phase.RUNNING),
            Trigger.CHANGE_TIMED_OUT: Row(Phase.RUNNING, (Verb.WITHDRAW,)),
            Trigger.WITHDRAWN: Row(Phase.RUNNING),
            # The group of the processes is broken.
            Trigger.CHANGE_FAILED: _END,
        },
        Phase.CHANGING: {
            Trigger.GATHERED: Row(Phase.CHANGING, (Verb.HURRY,)),
            Trigger.CHANGED: Row(Phase.RUNNING),
            Trigger.CHANGE_REFUSED: Row(Phase.CHANGING, (Verb.WITHDRAW,)),
            Trigger.WITHDRAWN: Row(Phase.RUNNING),
            # There is no checkpoint, because the processes wait for each other in the middle of a step.
            Trigger.CHANGE_FAILED: _END,
            # The training ends by itself, and needs no change.
            Trigger.RANK_ENDED: Row(Phase.CHANGING, (Verb.WITHDRAW,)),
            Trigger.RANK_FAILED: _END,
            Trigger.ALL_ENDED: _END,
            # The newer target is looked at when the processes are in one group again.
            Trigger.CHANGE: Row(Phase.CHANGING, (Verb.WITHDRAW,)),
            Trigger.CHANGE_UNSAVED: _END,
        },
        Phase.CHECKPOINTING: {
            Trigger.RANK_ENDED: Row(Phase.CHECKPOINTING),
            Trigger.RANK_FAILED: _END,
            Trigger.ALL_ENDED: _END,
            Trigger.SAVED: _END,
            Trigger.NOT_SAVED: _END,
            Trigger.SAVING_TIMED_OUT: _END,
            # The newer target needs the checkpoint as well.
            Trigger.CHANGE: Row(Phase.CHECKPOINTING),
            Trigger.CHANGE_UNSAVED: _END,
        },
        Phase.STOPPING: {
            Trigger.STARTED: Row(Phase.STOPPING),
            Trigger.START_FAILED: Row(Phase.STOPPING),
            Trigger.RANK_ENDED: Row(Phase.STOPPING),
            Trigger.RANK_FAILED: Row(Phase.STOPPING),
            Trigger.ALL_ENDED: Row(Phase.STOPPING),
            Trigger.SAVED: Row(Phase.STOPPING),
            Trigger.NOT_SAVED: Row(Phase.STOPPING),
            Trigger.CHANGE: Row(Phase.STOPPING),
            Trigger.CHANGE_UNSAVED: Row(Phase.STOPPING),
            Trigger.GRACE_OVER: _KILL,
            Trigger.STILL_THERE: _KILL,
            Trigger.GONE_TO_RUN: _START,
            Trigger.GONE_TO_STOP: Row(Phase.STOPPED),
            Trigger.GONE_TO_LEAVE: Row(Phase.STOPPED, (Verb.LEAVE,)),
            Trigger.GONE_WELL: Row(Phase.EXITED),
            Trigger.GONE_WELL_TO_LEAVE: Row(Phase.EXITED, (Verb.LEAVE,)),
            Trigger.GONE_BADLY: Row(Phase.FAILED),
        },
        Phase.STOPPED: _quiet(Phase.STOPPED),
        Phase.EXITED: _quiet(Phase.EXITED),
        Phase.FAILED: _quiet(Phase.FAILED),
    }
)
"""The whole behaviour; an event without a row for the phase changes nothing."""


def draw() -> str:
    """Return the table as a Mermaid diagram, without rows that keep the phase."""
    lines = ["stateDiagram-v2", f"    [*] --> {Phase.READY.value}"]
    for phase, rows in TABLE.items():
        arrows: dict[Row, list[str]] = {}
        for trigger, row in rows.items():
            if row.phase is not phase or row.verbs:
                arrows.setdefault(row, []).append(trigger.value)
        for row, words in arrows.items():
            done = "".join(f" / {verb.value}" for verb in row.verbs)
            lines.append(f"    {phase.value} --> {row.phase.value}: {', '.join(words)}{done}")
    return "\n".join(lines) + "\n"
