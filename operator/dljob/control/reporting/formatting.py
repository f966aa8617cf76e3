"""Formats figures for columns: durations, speeds, shares, ranges of GPUs.

``dljob get`` and ``kubectl get`` both use this module, so they show the same.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

NOTHING: Final = "-"
"""The cell of an unknown value, so that programs can split columns."""


def duration(seconds: float) -> str:
    """Write a duration with at most two units and no needless precision, as kubectl does."""
    whole = max(0, round(seconds))
    minutes, hours, days = whole // 60, whole // 3600, whole // 86400
    for limit, text in (
        (120, f"{whole}s"),
        (600, _two(minutes, "m", small=whole % 60, part="s")),
        (3 * 3600, f"{minutes}m"),
        (8 * 3600, _two(hours, "h", small=minutes % 60, part="m")),
        (48 * 3600, f"{hours}h"),
        (8 * 86400, _two(days, "d", small=hours % 24, part="h")),
    ):
        if whole < limit:
            return text
    return f"{days}d"


def eta(
    expected: float | None, between: tuple[float, float | None] | None = None, *, to: str = ""
) -> str:
    """Write a remaining time; with a word ``to``, its bounds. A guess has only bounds, after a ``~``."""
    if between is None or (expected is not None and not to):
        return NOTHING if expected is None else duration(expected)
    low, high = between
    if high is None:
        return NOTHING if expected is None else f"{duration(low)} or more"
    bounds = (to or "-").join(dict.fromkeys(map(duration, (low, high))))
    return bounds if expected is not None else f"~{bounds}"


def _two(large: int, unit: str, *, small: int, part: str) -> str:
    return f"{large}{unit}{small}{part}" if small else f"{large}{unit}"


def speed(iterations_per_second: float) -> str:
    return f"{iterations_per_second:.3g} it/s" if iterations_per_second > 0 else NOTHING


def progress(status: Mapping[str, Any]) -> str:
    """Write the progress in a job's status document: the share if known, else the number of iterations."""
    if did_all(status):
        return "100%"
    told = status.get("progress", {})
    iteration, fraction = told.get("iteration", 0), told.get("fraction")
    if fraction is None or (status.get("phase") == "Completed" and not iteration):
        return f"{iteration} it" if iteration else NOTHING
    # Never round a job that is not completed up to 100 %.
    return f"{min(99.9, 100 * fraction):.3g}%"


def did_all(status: Mapping[str, Any]) -> bool:
    """Return True if the job's status document shows that all requested work is done.

    The share is unknown for a job that had to do a number of iterations and reported none.
    """
    if status.get("phase") != "Completed":
        return False
    reason = next(
        (c["reason"] for c in status.get("conditions", ()) if c["type"] == "Finished"), ""
    )
    progress = status.get("progress", {})
    is_unknown = "fraction" in progress and not progress.get("iteration")
    return reason == "TargetReached" or (reason != "EndedEarly" and not is_unknown)


def in_ranges(numbers: Sequence[int]) -> str:
    """Write 0,1,2,3,6 as 0-3,6."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][-1] + 1:
            parts[-1][1:] = [number]
        else:
            parts.append([number])
    return ",".join("-".join(map(str, part)) for part in parts)
