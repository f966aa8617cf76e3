"""The examples that are shipped: job files, and the training that they run."""

import sys
from pathlib import Path
from typing import Any, NamedTuple

import yaml


class Example(NamedTuple):
    """An example, ready to be run by this very Python."""

    document: dict[str, Any]
    """Its job file."""
    command: tuple[str, ...]
    """The command of its training, without options."""


def load_example(name: str) -> Example:
    """Read an example."""
    folder = find_examples() / name
    document: dict[str, Any] = yaml.safe_load((folder / "job.yaml").read_text(encoding="utf-8"))
    return Example(document, (sys.executable, str(folder / "train.py")))


def find_examples() -> Path:
    """Return where they are: inside the package when installed, else in the checkout."""
    here = Path(__file__).resolve()
    packaged = here.parents[1] / "_examples"
    return packaged if packaged.is_dir() else here.parents[4] / "examples"
