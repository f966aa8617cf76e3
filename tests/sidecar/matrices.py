"""
The pairs of phase and event, named alike for the pure machine and for real SideCars.

An event is a trigger of the machine's table, or a way in which a declaration changes nothing. The
impossible pairs are listed with reasons; all others must be shown.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from itertools import product

from dljob_sidecar.behaviour.events import Event, Told
from dljob_sidecar.behaviour.machine import Machine, Reaction
from dljob_sidecar.behaviour.state import QUIET
from dljob_sidecar.behaviour.table import Trigger
from dljob_wire.messages import Phase, Refused

Pair = tuple[Phase, str]
"""A phase, and the name of an event in it."""

REPEATED = "the same target again"
STAMPED = "the same target by a newer leader"
REFUSALS = (Refused.OLDER, Refused.CONFLICT, Refused.OTHER_INCARNATION, Refused.LEAVING)


def name_refusal(refused: Refused) -> str:
    return f"refused: {refused.value}"


NAMES = (
    *(trigger.value for trigger in Trigger),
    REPEATED,
    STAMPED,
    *(name_refusal(refused) for refused in REFUSALS),
)
PAIRS = frozenset(product(Phase, NAMES))


def name_heard(event: Event, before: Machine, reaction: Reaction) -> str | None:
    """Name an event by the reaction of the machine; None if it had no effect."""
    if reaction.trigger is not None:
        return reaction.trigger.value
    if reaction.refused is not None:
        return name_refusal(reaction.refused)
    if not isinstance(event, Told):
        return None
    return REPEATED if reaction.machine == before else STAMPED


# --- what cannot come ---------------------------------------------------------------------

_LIVELY = frozenset(Phase) - QUIET
_CHANGES = {Trigger.CHANGE, Trigger.CHANGE_UNSAVED}
_STARTS = {Trigger.STARTED, Trigger.STARTED_TO_JOIN, Trigger.START_FAILED}
_ENDS = {Trigger.RANK_ENDED, Trigger.RANK_FAILED, Trigger.ALL_ENDED}
_SAVINGS = {Trigger.SAVED, Trigger.NOT_SAVED, Trigger.SAVING_TIMED_OUT}
LIVES = {
    Trigger.LIVE,
    Trigger.TRY_LIVE,
    Trigger.GATHERED,
    Trigger.CHANGED,
    Trigger.CHANGE_REFUSED,
    Trigger.CHANGE_FAILED,
    Trigger.CHANGE_TIMED_OUT,
    Trigger.WITHDRAWN,
}
_DELAYS = {Trigger.GRACE_OVER, Trigger.STILL_THERE}
_PROOFS = {
    Trigger.GONE_TO_RUN,
    Trigger.GONE_TO_STOP,
    Trigger.GONE_TO_LEAVE,
    Trigger.GONE_WELL,
    Trigger.GONE_WELL_TO_LEAVE,
    Trigger.GONE_BADLY,
}


def _pairs(phases: Iterable[Phase], words: Iterable[Trigger]) -> frozenset[Pair]:
    return frozenset((phase, trigger.value) for phase, trigger in product(phases, words))


IMPOSSIBLE: Mapping[str, frozenset[Pair]] = {
    "nothing lives, and its end was the last report about it": _pairs(
        QUIET, _CHANGES | _STARTS | _ENDS | _SAVINGS | _DELAYS | _PROOFS
    ),
    "something lives: each new declaration is a change, and the processes have to end first": _pairs(
        _LIVELY, {Trigger.RUN, Trigger.STOP, Trigger.LEAVE}
    ),
    "no process was asked to save itself": _pairs({Phase.STARTING, Phase.CHANGING}, _SAVINGS),
    "only a training that runs changes live": _pairs(
        frozenset(Phase) - {Phase.RUNNING, Phase.CHANGING}, LIVES
    ),
    "a trial of a live change takes place in Running, and its members are ready": _pairs(
        {Phase.RUNNING}, {Trigger.GATHERED}
    ),
    "a live change is over before the next one": _pairs(
        {Phase.CHANGING}, {Trigger.LIVE, Trigger.TRY_LIVE, Trigger.CHANGE_TIMED_OUT}
    ),
    "only a training that runs as declared tries its checkpoint": _pairs(
        frozenset(Phase) - {Phase.RUNNING}, {Trigger.TRY}
    ),
    "no process was ordered to end": _pairs(_LIVELY - {Phase.STOPPING}, _DELAYS),
    "the proof comes after the last end, and that leads to Stopping": _pairs(
        _LIVELY - {Phase.STOPPING}, _PROOFS
    ),
    "the start is over": _pairs({Phase.RUNNING, Phase.CHANGING, Phase.CHECKPOINTING}, _STARTS),
    "processes that were terminated join no others": _pairs(
        {Phase.STOPPING}, {Trigger.STARTED_TO_JOIN}
    ),
    "the report that all have started comes before the end of the last one": _pairs(
        {Phase.STARTING}, {Trigger.ALL_ENDED}
    ),
    "the timer of the checkpoint gave way to that of the grace": _pairs(
        {Phase.STOPPING}, {Trigger.SAVING_TIMED_OUT}
    ),
    "nothing was declared before": frozenset(
        (Phase.READY, name)
        for name in (REPEATED, STAMPED, name_refusal(Refused.OLDER), name_refusal(Refused.CONFLICT))
    ),
    "an order to leave leads to another phase at once": frozenset(
        (phase, name_refusal(Refused.LEAVING))
        for phase in (Phase.READY, Phase.STARTING, Phase.RUNNING)
    ),
}
"""The impossible pairs by reason; the exhaustive exploration checks them."""

POSSIBLE = PAIRS - frozenset().union(*IMPOSSIBLE.values())

LIVE_PAIRS = POSSIBLE & (
    _pairs(Phase, LIVES | {Trigger.STARTED_TO_JOIN})
    | {pair for pair in POSSIBLE if pair[0] is Phase.CHANGING}
)
"""The pairs of live changes, which need a training that registers."""

# --- what SideCars tell -------------------------------------------------------------------

_HEARD = re.compile(r"INFO ([\w ,]+): (\w+) -> \w+;")
_REFUSED = re.compile(r"WARNING refused .* while (\w+): (\w+)")


def read_pairs(log: str) -> list[Pair]:
    """Return the pairs that a SideCar logged."""
    heard = [(Phase(phase), trigger) for trigger, phase in _HEARD.findall(log)]
    refused = [
        (Phase(phase), name_refusal(Refused(reason))) for phase, reason in _REFUSED.findall(log)
    ]
    return heard + refused
