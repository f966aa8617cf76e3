"""
The package that a Python program imports to work with DLJob.

A training imports :mod:`dljob.training`, which needs the standard library alone; the SideCar shows it
this package. Where ``pip install dljob`` has put the rest beside it, the same package is the Python
interface of docs/python.md: its names come from :mod:`dlapi`, which is loaded when the first of them
is used, so that a training never loads it.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

# The stub beside this file gives type checkers the same names.
__all__ = [  # noqa: F822 - __getattr__ finds them
    "AsyncConnection",
    "Bound",
    "BrokenLaw",
    "Comparison",
    "Conflict",
    "Connection",
    "Decision",
    "Event",
    "Explanation",
    "Job",
    "JobOptions",
    "JobView",
    "Logs",
    "MissingExtra",
    "NeverHolds",
    "NotFound",
    "Notice",
    "Outcome",
    "Plan",
    "Policy",
    "Problem",
    "Refused",
    "Scenario",
    "Share",
    "TimedOut",
    "Timeline",
    "Unreachable",
    "View",
    "WrongInput",
    "WrongJob",
    "WrongUse",
    "bound",
    "compare",
    "connect",
    "connect_async",
    "simulate",
]

_INTERFACE = "dlapi"


def __getattr__(name: str) -> Any:
    """Load what is asked for: the module for trainings, or a name of the interface."""
    if name == "training":
        return import_module("dljob.training")
    if name not in __all__:
        raise AttributeError(f"module 'dljob' has no attribute {name!r}")
    try:
        interface = import_module(_INTERFACE)
    except ModuleNotFoundError as error:
        # A package that the interface needs may be missing as well; that is another fault.
        if error.name != _INTERFACE:
            raise
        raise ImportError(
            f"dljob.{name} is not here: this is the part of DLJob that the SideCar shows to trainings,"
            " dljob.training; pip install dljob brings the rest",
            name=f"dljob.{name}",
        ) from error
    return getattr(interface, name)


def __dir__() -> list[str]:
    """List the names for completion, without loading what is behind them."""
    return sorted({*globals(), *__all__, "training"})
