"""Accepts a target from the SideCar's own installation, with a higher term or as a repeat."""

from __future__ import annotations

from dataclasses import replace

from dljob_sidecar.behaviour.state import (
    Machine,
)
from dljob_wire.messages import (
    Refused,
    Run,
    Stop,
    Target,
)


def why_refused(machine: Machine, target: Target) -> Refused | None:
    # A target for an earlier start of the container does not apply to this one.
    if target.incarnation != machine.incarnation:
        return Refused.OTHER_INCARNATION
    own = machine.installation
    if own and target.installation and own != target.installation:
        return Refused.OTHER_INSTALLATION
    # A SideCar that ends could not prove the end of processes that it starts now.
    if machine.is_interrupted or machine.has_left:
        return Refused.LEAVING
    known = machine.target
    if known is None or target.term > known.term:
        return None
    # A replaced controller may not know that yet, and continues to send targets.
    if target.term < known.term:
        return Refused.OLDER
    is_hurry = is_hurried(target, known) or is_hurried(known, target)
    return None if is_hurry or says_the_same(target, known) else Refused.CONFLICT


def is_hurried(target: Target, known: Target) -> bool:
    """Return whether the target is the same stop without its checkpoint."""
    if not isinstance(target, Stop) or not isinstance(known, Stop):
        return False
    drops_it = known.checkpoint and not target.checkpoint
    return drops_it and says_the_same(replace(target, checkpoint=True), known)


def says_the_same(one: Target, other: Target) -> bool:
    """Compare two targets without leader, reason, next start, trial and known end."""
    other = replace(other, epoch=one.epoch, reason=one.reason)
    if isinstance(one, Stop) and isinstance(other, Stop):
        other = replace(other, coming=one.coming)
    if isinstance(one, Run) and isinstance(other, Run):
        other = replace(other, trial=one.trial, ended=one.ended)
    return one == other


def stamped_by(machine: Machine, target: Target) -> Machine:
    known = machine.target
    assert known is not None
    stamped = replace(known, epoch=target.epoch, installation=machine.installation)
    if isinstance(stamped, Run) and isinstance(target, Run):
        # An earlier message may arrive after the latest, and must not withdraw a trial.
        ends = [end for end in (stamped.ended, target.ended) if end is not None]
        trial = max(stamped.trial, target.trial)
        stamped = replace(stamped, trial=trial, ended=max(ends, default=None))
        if machine.run == known:
            return replace(machine, target=stamped, run=stamped)
    return replace(machine, target=stamped)
