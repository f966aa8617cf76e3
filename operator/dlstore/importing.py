"""
Profiles from the outside into a store, and out of it for good: ``dljob profiles import``, ``forget``.

The caller brings profiles from a file, or those that :mod:`dlsim.inputs.shipped` makes of the folder
``profiles/``; an export is just rendered (:mod:`dlcore.documents.profilefile`). An import replaces no local
measurements, unless asked to.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

from dlcore.profiles import MOST_SHAPES, JobType, Profile
from dlstore.store import Store


class ImportResult(NamedTuple):
    """The results of an import."""

    added: tuple[JobType, ...] = ()
    """Nothing was known of these before."""
    changed: tuple[JobType, ...] = ()
    kept: tuple[JobType, ...] = ()
    """The store already had better knowledge of these, or the same."""


def import_profiles(
    store: Store, profiles: Iterable[Profile], *, instead: bool = False
) -> ImportResult:
    """
    Take profiles in. Where something is known already, they fill the gaps; with ``instead`` they
    take its place.
    """
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

    # Another process may change it at the same time: what the last call saw is what happened.
    store.change(profile.type, change)
    return outcome


def complete(known: Profile, other: Profile) -> Profile:
    """Add to what is known what only the other one knows; measurements of our own stay."""
    room = max(0, MOST_SHAPES - len(known.speeds))
    news = [shape for shape in other.speeds if shape not in known.speeds]
    return replace(
        known,
        speeds={**known.speeds, **{shape: other.speeds[shape] for shape in news[:room]}},
        # Two curves are not mixed: they may have been drawn at different learning rates.
        accuracy=known.accuracy or other.accuracy,
        costs=known.costs or other.costs,
        cost_samples=known.cost_samples if known.costs else other.cost_samples,
    )


def forget_profile(store: Store, kind: JobType) -> bool:
    """Forget what is known of a type; tell whether there was anything."""
    there = False

    def change(known: Profile | None) -> None:
        nonlocal there
        there = known is not None

    store.change(kind, change)
    return there
