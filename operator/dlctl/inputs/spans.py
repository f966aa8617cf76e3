"""
Lengths of time on the command line: ``90``, ``90s``, ``5m``, ``1h30m``, ``2d``.
"""

import re

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
