"""The table of the SideCar's behaviour: what follows in which phase from which word."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType
from typing import NamedTuple

from dlwire.messages import (
    Phase,
)


class Word(Enum):
    """Everything that can happen, told apart as far as it makes a difference."""

    RUN = "a command to run"
    STOP = "a command to stop"
    LEAVE = "a command to leave"
    CHANGE = "a newer command"
    CHANGE_UNSAVED = "a newer command, without a checkpoint"
    TRY = "a command to try its checkpoint"
    STARTED = "all started"
    START_FAILED = "a start failed"
    RANK_ENDED = "a rank ended well"
    RANK_FAILED = "a rank ended badly"
    ALL_ENDED = "the last rank ended"
    SAVED = "checkpoint confirmed"
    NOT_SAVED = "checkpoint failed"
    SAVING_TIMED_OUT = "checkpoint too slow"
    GRACE_OVER = "grace is over"
    STILL_THERE = "still not gone"
    GONE_TO_RUN = "all gone, a newer run waits"
    GONE_TO_STOP = "all gone, as declared"
    GONE_TO_LEAVE = "all gone, leaving"
    GONE_WELL = "all gone by themselves"
    GONE_WELL_TO_LEAVE = "all gone by themselves, leaving"
    GONE_BADLY = "all gone after a failure"


class Verb(Enum):
    """The demands of the table; :func:`react` turns them into actions."""

    START = "start"
    SAVE = "checkpoint"
    TRY = "checkpoint and go on"
    GIVE_UP = "wait no longer"
    END = "terminate"
    KILL = "kill"
    LEAVE = "leave"


class Row(NamedTuple):
    phase: Phase
    verbs: tuple[Verb, ...] = ()


_START = Row(Phase.STARTING, (Verb.START,))


_END = Row(Phase.STOPPING, (Verb.END,))


_KILL = Row(Phase.STOPPING, (Verb.KILL,))


def _quiet(phase: Phase) -> Mapping[Word, Row]:
    """Make the rows of a phase in which nothing lives; how it went last is not forgotten."""
    stopped = Phase.STOPPED if phase is Phase.READY else phase
    return {
        Word.RUN: _START,
        Word.STOP: Row(stopped),
        Word.LEAVE: Row(stopped, (Verb.LEAVE,)),
    }


TABLE: Mapping[Phase, Mapping[Word, Row]] = MappingProxyType(
    {
        Phase.READY: _quiet(Phase.READY),
        Phase.STARTING: {
            Word.STARTED: Row(Phase.RUNNING),
            Word.START_FAILED: _END,
            Word.RANK_ENDED: Row(Phase.STARTING),
            Word.RANK_FAILED: _END,
            # No supervisor tells of the last end before the start; should one do so, what was left
            # behind has to go, too, before anything can be proven.
            Word.ALL_ENDED: _END,
            # There is nothing yet that would be worth a checkpoint.
            Word.CHANGE: _END,
            Word.CHANGE_UNSAVED: _END,
        },
        Phase.RUNNING: {
            Word.RANK_ENDED: Row(Phase.RUNNING),
            # The others would wait for it for ever, and a checkpoint may need it.
            Word.RANK_FAILED: _END,
            Word.ALL_ENDED: _END,
            Word.TRY: Row(Phase.RUNNING, (Verb.TRY,)),
            Word.SAVED: Row(Phase.RUNNING),
            Word.NOT_SAVED: Row(Phase.RUNNING),
            Word.SAVING_TIMED_OUT: Row(Phase.RUNNING, (Verb.GIVE_UP,)),
            Word.CHANGE: Row(Phase.CHECKPOINTING, (Verb.SAVE,)),
            Word.CHANGE_UNSAVED: _END,
        },
        Phase.CHECKPOINTING: {
            Word.RANK_ENDED: Row(Phase.CHECKPOINTING),
            Word.RANK_FAILED: _END,
            Word.ALL_ENDED: _END,
            Word.SAVED: _END,
            Word.NOT_SAVED: _END,
            Word.SAVING_TIMED_OUT: _END,
            # The checkpoint is needed for the newer one just as well.
            Word.CHANGE: Row(Phase.CHECKPOINTING),
            Word.CHANGE_UNSAVED: _END,
        },
        Phase.STOPPING: {
            Word.STARTED: Row(Phase.STOPPING),
            Word.START_FAILED: Row(Phase.STOPPING),
            Word.RANK_ENDED: Row(Phase.STOPPING),
            Word.RANK_FAILED: Row(Phase.STOPPING),
            Word.ALL_ENDED: Row(Phase.STOPPING),
            Word.SAVED: Row(Phase.STOPPING),
            Word.NOT_SAVED: Row(Phase.STOPPING),
            Word.CHANGE: Row(Phase.STOPPING),
            Word.CHANGE_UNSAVED: Row(Phase.STOPPING),
            Word.GRACE_OVER: _KILL,
            Word.STILL_THERE: _KILL,
            Word.GONE_TO_RUN: _START,
            Word.GONE_TO_STOP: Row(Phase.STOPPED),
            Word.GONE_TO_LEAVE: Row(Phase.STOPPED, (Verb.LEAVE,)),
            Word.GONE_WELL: Row(Phase.EXITED),
            Word.GONE_WELL_TO_LEAVE: Row(Phase.EXITED, (Verb.LEAVE,)),
            Word.GONE_BADLY: Row(Phase.FAILED),
        },
        Phase.STOPPED: _quiet(Phase.STOPPED),
        Phase.EXITED: _quiet(Phase.EXITED),
        Phase.FAILED: _quiet(Phase.FAILED),
    }
)
"""The whole behaviour. An event that is not named for a phase changes nothing."""


def draw() -> str:
    """Draw the table as a Mermaid diagram; what leaves a phase as it is, is left out."""
    lines = ["stateDiagram-v2", f"    [*] --> {Phase.READY.value}"]
    for phase, rows in TABLE.items():
        arrows: dict[Row, list[str]] = {}
        for word, row in rows.items():
            if row.phase is not phase or row.verbs:
                arrows.setdefault(row, []).append(word.value)
        for row, words in arrows.items():
            done = "".join(f" / {verb.value}" for verb in row.verbs)
            lines.append(f"    {phase.value} --> {row.phase.value}: {', '.join(words)}{done}")
    return "\n".join(lines) + "\n"
