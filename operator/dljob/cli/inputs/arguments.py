"""
Turns words of the command line into values for the simulator.

The verbs use them as types of their options. An error names the option and says what to write, and the exit
status is 2.
"""

import math
from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, TypeVar

import click

from dljob.sim.results.looks import FORMATS, Format

if TYPE_CHECKING:
    from dljob.sim.clusters import Machines
    from dljob.sim.simulating import Contestant

Value = TypeVar("Value")

MOST_ERROR = 3.0
"""The largest standard deviation of a logarithm: a third of the factors is beyond 20."""

LONGEST_S = 1e8
"""Three years; longer values are slips."""

LEAST_LOAD, MOST_LOAD = 0.001, 1000.0
"""Loads beyond these leave a cluster idle for centuries, or have all jobs come at one instant."""

MOST_SEED = 2**63 - 1


def option_type(parse: Callable[[str], Value]) -> Callable[[str], Value]:
    """Make a type of option from a function, with the function's own errors."""

    @wraps(parse)
    def convert(text: str) -> Value:
        try:
            return parse(text)
        except ValueError as error:
            raise click.BadParameter(str(error)) from error

    return convert


@option_type
def read_contestant(text: str) -> "Contestant":
    """Parse a policy with its options; the typed text is its name in results."""
    # Not at the top, because policies take long to load.
    from dljob.sim import policies  # noqa: PLC0415
    from dljob.sim.simulating import Contestant  # noqa: PLC0415

    return Contestant(text, policies.read(text))


@option_type
def read_gpus(text: str) -> "tuple[Machines, ...]":
    from dljob.sim.clusters import fill_nodes  # noqa: PLC0415 - it loads the model of a cluster

    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise ValueError(f"{text!r} is not a whole number of GPUs; give at least 1")
    return fill_nodes(int(text))


@option_type
def read_counts(text: str) -> tuple[int, ...]:
    parts = text.split(",")
    if not all(part.isascii() and part.isdigit() and int(part[:19]) > 0 for part in parts):
        raise ValueError(f"{text!r} is not a list of numbers of GPUs; write such as 1,2,4")
    return tuple(map(int, parts))


@option_type
def read_cluster(text: str) -> "tuple[Machines, ...]":
    from dljob.sim.clusters import parse_cluster  # noqa: PLC0415 - as above

    return parse_cluster(text)


@option_type
def read_limits(text: str) -> dict[str, int]:
    """Parse a number for each namespace, as in the controller's settings."""
    from dljob.control.settings import read_numbers  # noqa: PLC0415 - it loads all settings

    try:
        return read_numbers(text)
    except ValueError as error:
        raise ValueError(f"{text!r} is not {error}; write such as team-a=8,*=4") from error


@option_type
def read_seconds(text: str) -> float:
    seconds = _to_number(text)
    if not 0.0 <= seconds <= LONGEST_S:
        raise ValueError(
            f"{text!r} is not a number of seconds from 0 to {LONGEST_S:,.0f}; write such as 30"
        )
    return seconds


@option_type
def read_pauses(text: str) -> tuple[float, float]:
    """Parse the pauses of a live change to fewer GPUs and to more."""
    parts = [_to_number(part) for part in text.split(",")]
    if len(parts) != 2 or not all(0.0 <= seconds <= LONGEST_S for seconds in parts):
        raise ValueError(
            f"{text!r} is not the seconds of a change to fewer GPUs and to more; write such as 0.05,0.35"
        )
    return parts[0], parts[1]


@option_type
def read_load(text: str) -> float:
    load = _to_number(text)
    if not LEAST_LOAD <= load <= MOST_LOAD:
        raise ValueError(
            f"{text!r} is not a load from {LEAST_LOAD:g} to {MOST_LOAD:g}; write such as 0.9"
        )
    return load


@option_type
def read_error(text: str) -> float:
    """Parse the standard deviation of the logarithm of beliefs."""
    error = _to_number(text)
    # Larger values give factors in the thousands.
    if not 0.0 <= error <= MOST_ERROR:
        raise ValueError(f"{text!r} is not an error from 0 to {MOST_ERROR:g}; write such as 0.2")
    return error


@option_type
def read_formats(text: str) -> tuple[Format, ...]:
    wanted = text.split(",")
    for name in wanted:
        if name not in FORMATS:
            raise ValueError(f"{name!r} is not one of {', '.join(FORMATS)}")
    return tuple(form for form in FORMATS if form in wanted)


def _to_number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan
