"""Small phrases that sentences are made of: counts, places, spans and lists."""

from collections.abc import Sequence
from math import isfinite

from dljob.core.model import Placement

SHORTEST = 0.95
"""A time below this many seconds is "less than one second"."""


def count_gpus(count: int) -> str:
    return f"{count} GPU{'' if count == 1 else 's'}"


def is_or_are(count: int) -> str:
    return {0: "none is", 1: "1 is"}.get(count, f"{count} are")


def named_place(placement: Placement) -> str:
    return f"{count_gpus(placement.gpus)} on {enumerated(placement.nodes)}"


def enumerated(names: Sequence[str]) -> str:
    """Name one or two, and count the others."""
    if len(names) <= 2:
        return " and ".join(names)
    return f"{names[0]} and {len(names) - 1} others"


def between(low: float, high: float) -> str:
    """Name the bounds of a duration, or one duration where both round to the same."""
    if not isfinite(high):
        return f"{duration(low)} or more"
    shortest, longest = duration(low), duration(high)
    if shortest == longest:
        return longest
    if low < SHORTEST:
        return f"at most {longest.removeprefix('about ')}"
    least, unit = shortest.removeprefix("about ").split(" ")
    most, other = longest.removeprefix("about ").split(" ")
    return f"about {least} to {most} {unit}" if unit == other else f"{shortest} to {most} {other}"


def at_most(seconds: float) -> str:
    """Round an upper bound as people do."""
    longest = duration(seconds)
    return f"up to {longest.removeprefix('about ')}" if longest.startswith("about ") else longest


def duration(seconds: float) -> str:
    """Round a duration as people do."""
    if seconds < SHORTEST:
        return "less than 1 s"
    if seconds < 90:
        return f"about {seconds:.0f} s"
    if seconds < 90 * 60:
        return f"about {seconds / 60:.0f} min"
    if seconds < 48 * 3600:
        return f"about {seconds / 3600:.1f} h"
    return f"about {seconds / 86400:.0f} days"
