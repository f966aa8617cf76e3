"""
The package that programs import: :mod:`dljob.training`, and the interface of docs/python.md.

The names of the interface come from :mod:`dljob.api`, which is loaded at their first use, so a training
never loads it. The SideCar offers only :mod:`dljob.training` to trainings.
"""

import os
import sys
from importlib import import_module
from typing import Any

_SIDECAR = os.path.join(os.path.dirname(__file__), "_sidecar")  # noqa: PTH118, PTH120 - pathlib loads slowly
if os.path.isdir(_SIDECAR):  # noqa: PTH112
    # The wheel holds the SideCar and the words on the wire here, so that it adds no other name to the
    # packages of other projects. They come first, because a SideCar installed apart may be of another version.
    sys.path.insert(0, _SIDECAR)


def __getattr__(name: str) -> Any:
    # `from dljob import training` asks here first, and must not load the interface for it.
    path = os.path.join(os.path.dirname(__file__), name)  # noqa: PTH118, PTH120
    is_module = os.path.isdir(path) or os.path.isfile(f"{path}.py")  # noqa: PTH112, PTH113
    if is_module or (name.startswith("_") and name != "__all__"):
        raise AttributeError(f"module 'dljob' has no attribute {name!r}")
    interface = import_module("dljob.api")
    if name != "__all__" and name not in interface.__all__:
        raise AttributeError(f"module 'dljob' has no attribute {name!r}")
    return getattr(interface, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *import_module("dljob.api").__all__, "training"})
