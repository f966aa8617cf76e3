"""
Turns words of the command line into values for the simulator.

The verbs use them as types of their options. An error names the option and says what to write, and the exit
status is 2.
"""

import math
from collections.abc import Callable
from functools import wraps
from typing import TypeVar

import click

from dlcontrol.settings import read_numbers
from dlsim import policies
from dlsim.clusters import Machines, fill_nodes, parse_cluster
from dlsim.comparing.summing import GROUPS
from dlsim.results.looks import FORMATS, Format
from dlsim.simulating import Contestant

Value = TypeVar("Value")

MOST_ERROR = 3.0
"""Of the logarithm of a speed or a length: factors of 20 either way for one in three."""

LONGEST_S = 1e8
"""Three years: a longer restart or period is a slip."""

LEAST_LOAD, MOST_LOAD = 0.001, 1000.0
"""Loads beyond these leave a cluster idle for centuries, or have all jobs come at one instant."""

MOST_SEED = 2**63 - 1


def _option_type(parse: Callable[[str], Value]) -> Callable[[str], Value]:
    """Make a type of option of a function; click alone would swallow what its error says."""

    @wraps(parse)
    def convert(text: str) -> Value:
        try:
            return parse(text)
        except ValueError as error:
            raise click.BadParameter(str(error)) from error

    return convert


@_option_type
def read_contestant(text: str) -> Contestant:
    """Read a policy with its options; what was typed is its name among the others."""
    return Contestant(text, policies.read(text))


@_option_type
def read_gpus(text: str) -> tuple[Machines, ...]:
    """Read the number of GPUs of a cluster of nodes of eight."""
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise ValueError(f"{text!r} is not a whole number of GPUs; give at least 1")
    return fill_nodes(int(text))


@_option_type
def read_counts(text: str) -> tuple[int, ...]:
    """Read numbers of GPUs."""
    parts = text.split(",")
    if not all(part.isascii() and part.isdigit() and int(part[:19]) > 0 for part in parts):
        raise ValueError(f"{text!r} is not a list of numbers of GPUs; write such as 1,2,4")
    return tuple(map(int, parts))


@_option_type
def read_cluster(text: str) -> tuple[Machines, ...]:
    """Read what nodes a cluster has."""
    return parse_cluster(text)


@_option_type
def read_limits(text: str) -> dict[str, int]:
    """Read a number for each of some namespaces, as the settings of a controller have it."""
    try:
        return read_numbers(text)
    except ValueError as error:
        raise ValueError(f"{text!r} is not {error}; write such as team-a=8,*=4") from error


@_option_type
def read_seconds(text: str) -> float:
    """Read a duration."""
    seconds = _to_number(text)
    if not 0.0 <= seconds <= LONGEST_S:
        raise ValueError(
            f"{text!r} is not a number of seconds from 0 to {LONGEST_S:,.0f}; write such as 30"
        )
    return seconds


@_option_type
def read_load(text: str) -> float:
    """Read an offered load."""
    load = _to_number(text)
    if not LEAST_LOAD <= load <= MOST_LOAD:
        raise ValueError(
            f"{text!r} is not a load from {LEAST_LOAD:g} to {MOST_LOAD:g}; write such as 0.9"
        )
    return load


@_option_type
def read_error(text: str) -> float:
    """Read the standard deviation of the logarithm of what is believed."""
    error = _to_number(text)
    # Beyond that single factors are in the thousands, and nothing is believed at all.
    if not 0.0 <= error <= MOST_ERROR:
        raise ValueError(f"{text!r} is not an error from 0 to {MOST_ERROR:g}; write such as 0.2")
    return error


@_option_type
def read_loads(text: str) -> tuple[float, ...]:
    """Read several offered loads."""
    return _read_several(text, read_load)


@_option_type
def read_costs(text: str) -> tuple[float, ...]:
    """Read several durations."""
    return _read_several(text, read_seconds)


@_option_type
def read_errors(text: str) -> tuple[float, ...]:
    """Read several errors."""
    return _read_several(text, read_error)


@_option_type
def read_formats(text: str) -> tuple[Format, ...]:
    """Read in which formats pictures are written."""
    wanted = text.split(",")
    for name in wanted:
        if name not in FORMATS:
            raise ValueError(f"{name!r} is not one of {', '.join(FORMATS)}")
    return tuple(form for form in FORMATS if form in wanted)


@_option_type
def read_groups(text: str) -> tuple[str, ...]:
    """Read the fields that distinguish the lines of a comparison."""
    names = tuple(dict.fromkeys(filter(None, text.split(","))))
    for name in names:
        if name not in GROUPS:
            raise ValueError(f"{name!r} is not one of {', '.join(GROUPS)}")
    return names


def _read_several(text: str, read: Callable[[str], float]) -> tuple[float, ...]:
    return tuple(dict.fromkeys(read(part) for part in text.split(",")))


def _to_number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan
