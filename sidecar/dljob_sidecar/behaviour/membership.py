"""
The processes of one container that stay, leave and join when the members of a job change live.

The machine asks if the change is possible, and ``dljob_sidecar.processes`` which process does which.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from dljob_wire.messages import Run, Target


@dataclass(frozen=True)
class Difference:
    """The difference between the processes of a container and those of its target."""

    stays: Mapping[int, int]
    """The new rank of each process that stays, by its present one."""
    leaves: tuple[int, ...]
    """The present ranks of the processes that leave."""
    joins: tuple[int, ...]
    """The new ranks of the processes that join."""


def find_difference(run: Run, target: Target) -> Difference | None:
    """Return who stays, leaves and joins here; None if the processes have to be restarted."""
    live, here = target.live, target.ranks if isinstance(target, Run) else range(0)
    if live is None or live.since != run.generation or not _has_own_gpus(run):
        return None
    stays = {old: new for new, old in enumerate(live.members) if old in run.ranks}
    joins = tuple(rank for rank in here if live.members[rank] < 0)
    # A process never moves to another container.
    moves = any(
        (old in run.ranks) != (new in here) for new, old in enumerate(live.members) if old >= 0
    )
    if moves or (isinstance(target, Run) and not _fits(run, target, stays, joins)):
        return None
    return Difference(stays, tuple(rank for rank in run.ranks if rank not in stays), joins)


def _fits(run: Run, target: Run, stays: Mapping[int, int], joins: tuple[int, ...]) -> bool:
    """Return True if each process that stays keeps its GPU, and each that joins gets an empty one."""
    if not _has_own_gpus(target):
        return False
    is_kept = all(gpu_of(run, old) == gpu_of(target, new) for old, new in stays.items())
    return is_kept and not {gpu_of(target, rank) for rank in joins} & {*run.gpus}


def is_in_name_only(run: Run, target: Target) -> bool:
    """Return True if the same processes only belong to another generation, as after a change that was given up."""
    if not isinstance(target, Run) or target.live is None or find_difference(run, target) is None:
        return False
    own = run.batch_size, run.learning_rate_factor
    is_same = own == (target.batch_size, target.learning_rate_factor)
    # The members in other containers keep their ranks as well.
    return is_same and target.live.members == tuple(range(run.world_size))


def rebase(target: Target, since: int, run: Run) -> Target:
    """
    Return a target whose author did not know yet that the members of ``since`` have become those of ``run``.

    In one container its GPUs show which processes stay. In several each SideCar needs the same members, so the target
    stays as it is.
    """
    live = target.live
    if not isinstance(target, Run) or live is None or live.since != since:
        return target
    is_one = len(run.peers) == len(target.peers) == 1
    if not is_one or not _has_own_gpus(run) or not _has_own_gpus(target):
        return target
    places = {gpu: rank for rank, gpu in enumerate(run.gpus)}
    members = tuple(places.get(gpu, -1) for gpu in target.gpus)
    if max(members) < 0:
        return target
    return replace(target, live=replace(live, since=run.generation, members=members))


def _has_own_gpus(run: Run) -> bool:
    """Return True if each process has one GPU for itself, which can come and go with it."""
    return len(run.gpus) == run.processes


def gpu_of(run: Run, rank: int) -> str:
    """Return the GPU of a process in a run where each has its own."""
    return run.gpus[rank - run.rank_offset]
