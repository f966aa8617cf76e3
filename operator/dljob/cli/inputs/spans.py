"""
Lengths of time on the command line, such as ``90``, ``90s``, ``5m``, ``1h30m``, ``2d``, and the begin of a record.
"""

import re
import time
from datetime import datetime

import click

_UNITS = {"d": 86_400.0, "h": 3600.0, "m": 60.0, "s": 1.0}
_SPAN = re.compile(r"(?:\d+(?:\.\d+)?[dhms])+")
_PART = re.compile(r"(\d+(?:\.\d+)?)([dhms])")
_NUMBER = re.compile(r"\d+(?:\.\d+)?")


def read_span(text: str) -> float:
    """Parse a length of time into seconds; raises :class:`click.BadParameter`."""
    if len(text) <= 20 and _NUMBER.fullmatch(text):
        return float(text)
    if len(text) <= 40 and _SPAN.fullmatch(text):
        return sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(text))
    raise click.BadParameter(f"{text!r} is not a length of time; write such as 90s, 5m or 1h30m")


def read_span_option(
    ctx: click.Context,  # noqa: ARG001 - as click calls it
    param: click.Parameter,  # noqa: ARG001 - as click calls it
    text: str | None,
) -> float | None:
    return None if text is None else read_span(text)


def read_begin(text: str) -> float:
    """Parse a length of time before now, or a time; return seconds since the epoch."""
    try:
        # A time without a zone is in the zone of this machine.
        return max(0.0, datetime.fromisoformat(text).astimezone().timestamp())
    except (ValueError, OverflowError):
        pass
    try:
        return max(0.0, time.time() - read_span(text))
    except click.BadParameter as error:
        remedy = "write such as 90s, 2h or 7d, or a time such as 2026-01-31T08:00"
        raise click.BadParameter(f"{text!r} is not a length of time or a time; {remedy}") from error
