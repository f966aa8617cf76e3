"""
The package that programs import: :mod:`dljob.training`, and the interface of docs/python.md.

The names of the interface come from :mod:`dljob.api`, which is loaded at their first use, so a training
never loads it. The SideCar offers only :mod:`dljob.training` to trainings.
"""

from importlib import import_module
from typing import Any


def __getattr__(name: str) -> Any:
    interface = import_module("dljob.api")
    if name != "__all__" and name not in interface.__all__:
        raise AttributeError(f"module 'dljob' has no attribute {name!r}")
    return getattr(interface, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *import_module("dljob.api").__all__, "training"})
