"""
The results of a reproduction: rows of figures.

The modules next to this one make them, ``dljob reproduce`` prints them.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Row:
    """A figure of theirs and ours next to it, in the words of ``dljob reproduce -o json``."""

    item: str
    """Its subject, from the general to the particular: ``workload-1/kube-default``."""
    quantity: str
    unit: str
    paper: float
    """0 where it gives no figure."""
    ours: float
    spread: float = 0.0
    """The standard deviation of ours where it is the mean of several runs, else 0."""


@dataclass(frozen=True, slots=True)
class Reproduction:
    """All findings."""

    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()
    """Notes that a reader of the figures needs, in sentences."""
