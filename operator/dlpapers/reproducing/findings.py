"""
The results of a reproduction: rows of figures, and pictures.

The modules beside this one make them, ``dljob reproduce`` prints them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    # Most who read figures look at no pictures, and matplotlib takes its time to load.
    from matplotlib.figure import Figure


@dataclass(frozen=True, slots=True)
class Row:
    """A figure of theirs and ours beside it, in the words of ``dljob reproduce -o json``."""

    item: str
    """Its subject, from the general to the particular: ``workload-1/kube-default``."""
    quantity: str
    unit: str
    paper: float
    """0 where it gives no figure."""
    ours: float
    spread: float = 0.0
    """The standard deviation of ours where it is the mean of several runs, else 0."""


def draw_nothing() -> Mapping[str, Figure]:
    """No pictures."""
    return {}


@dataclass(frozen=True, slots=True)
class Reproduction:
    """All findings. Pictures are drawn only on request."""

    rows: tuple[Row, ...]
    draw: Callable[[], Mapping[str, Figure]] = draw_nothing
    """Makes the pictures, by the names of their files without the suffix."""
    notes: tuple[str, ...] = ()
    """Notes that a reader of the figures needs, in sentences."""
