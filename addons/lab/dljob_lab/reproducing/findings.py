"""
The results of a reproduction: rows of figures.

The modules next to this one make them, ``dljob reproduce`` prints them.
"""

import math
from dataclasses import asdict, dataclass
from enum import Enum, StrEnum
from typing import Any

TOLERANCE = 0.1
"""Figures of a simulation and of a machine that differ by less than this share are called equal."""


class Wanted(Enum):
    """In which direction a figure of the paper counts for its claim."""

    MORE = "more"
    LESS = "less"
    SAME = "same"


class Verdict(StrEnum):
    """How a figure of ours stands to a claim of a paper."""

    BETTER = "better"
    EQUAL = "equal within a tenth"
    WORSE = "worse"
    NOT_REPRODUCED = "not reproduced"
    NOT_TRIED = "not tried"


NO_EFFECT = {"x": 1.0, "%": 0.0}
"""The figure, by unit, at which one thing is as good as the other: beyond it the claim is the opposite."""


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
    """Not a number where it never happened, or was not tried."""
    spread: float = 0.0
    """The standard deviation of ours where it is the mean of several runs, else 0."""
    wanted: Wanted | None = None
    """Set where the paper claims something by its figure."""
    in_sample: bool = False
    """True if something was fitted to the very figure of the paper."""
    is_tried: bool = True

    @property
    def verdict(self) -> Verdict | None:
        """How ours stands to the paper's; ``None`` where it claims nothing."""
        if self.wanted is None:
            return None
        if not self.is_tried:
            return Verdict.NOT_TRIED
        if abs(self.ours - self.paper) <= TOLERANCE * abs(self.paper):
            return Verdict.EQUAL
        is_more, none = self.wanted is Wanted.MORE, NO_EFFECT.get(self.unit, 0.0)
        is_against = is_more and self.ours <= none
        if self.wanted is Wanted.SAME or is_against or math.isnan(self.ours):
            return Verdict.NOT_REPRODUCED
        return Verdict.BETTER if (self.ours > self.paper) is is_more else Verdict.WORSE

    def to_record(self) -> dict[str, Any]:
        """Return the row for programs."""
        record = asdict(self)
        del record["wanted"], record["in_sample"], record["is_tried"]
        ours = None if math.isnan(self.ours) else self.ours
        sample = "in-sample" if self.in_sample else "out of sample"
        return record | {"ours": ours, "verdict": self.verdict, "sample": sample}


@dataclass(frozen=True, slots=True)
class Reproduction:
    """All findings."""

    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()
    """Notes that a reader of the figures needs, in sentences."""
