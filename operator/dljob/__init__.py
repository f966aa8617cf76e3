"""
THE PACKAGE THAT PROGRAMS IMPORT: :mod:`dljob.training` for trainings, and the Python interface of docs/python.md.

The names of the interface are those of :mod:`dlapi`, which is loaded when the first of them is used, so
that a training never loads it. The SideCar shows :mod:`dljob.training` alone to trainings.
"""

from importlib import import_module
from typing import Any


def __getattr__(name: str) -> Any:
    interface = import_module("dlapi")
    if name != "__all__" and name not in interface.__all__:
        raise AttributeError(f"module 'dljob' has no attribute {name!r}")
    return getattr(interface, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *import_module("dlapi").__all__, "training"})
