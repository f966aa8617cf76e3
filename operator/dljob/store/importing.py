"""
Imports profiles into a store, and removes them (``dljob profiles import``, ``forget``).

An import replaces local measurements only if asked to.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

from dljob.core.profiles import MOST_SHAPES, JobType, Profile
from dljob.store.store import Store


class ImportResult(NamedTuple):
    added: tuple[JobType, ...] = ()
    changed: tuple[JobType, ...] = ()
    kept: tuple[JobType, ...] = ()
    """The store had the same profile or a better one."""


def import_profiles(
    store: Store, profiles: Iterable[Profile], *, instead: bool = False
) -> ImportResult:
    """Add profiles. They fill the gaps of known ones; with ``instead`` they replace them."""
    outcomes: dict[str, list[JobType]] = {name: [] for name in ImportResult._fields}
    for profile in profiles:
        outcomes[_take_in(store, profile, instead=instead)].append(profile.type)
    return ImportResult(**{name: tuple(types) for name, types in outcomes.items()})


def _take_in(store: Store, profile: Profile, *, instead: bool) -> str:
    outcome = "kept"

    def change(known: Profile | None) -> Profile:
        nonlocal outcome
        wanted = profile if known is None or instead else complete(known, profile)
        outcome = "added" if known is None else "changed"
        if known is not None and known.says_the_same_as(wanted):
            outcome = "kept"
            return known
        return wanted

    # With concurrent changes the last call counts.
    store.change(profile.type, change)
    return outcome


def complete(known: Profile, other: Profile) -> Profile:
    """Fill the gaps of a known profile from another one."""
    room = max(0, MOST_SHAPES - len(known.speeds))
    news = [shape for shape in other.speeds if shape not in known.speeds]
    return replace(
        known,
        speeds={**known.speeds, **{shape: other.speeds[shape] for shape in news[:room]}},
        # Curves are not mixed: their learning rates may differ.
        accuracy=known.accuracy or other.accuracy,
        costs=known.costs or other.costs,
        cost_samples=known.cost_samples if known.costs else other.cost_samples,
    )


def forget_profile(store: Store, kind: JobType) -> bool:
    """Forget the profile of a type; returns whether there was one."""
    there = False

    def change(known: Profile | None) -> None:
        nonlocal there
        there = known is not None

    store.change(kind, change)
    return there
