"""
The results of a reproduction: rows of figures, and the claims of the paper.

The modules next to this one make them, ``dljob reproduce`` prints them.
"""

from collections import Counter
from dataclasses import dataclass
from enum import StrEnum

EQUAL_WITHIN = 0.1
"""The largest difference of equal figures, as a share of the paper's."""


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


class Better(StrEnum):
    """Which of two figures is the better one."""

    HIGHER = "higher"
    LOWER = "lower"
    NEARER = "nearer"
    """A figure of a system that is played again, such as one that the paper beats: only an equal one is right."""


@dataclass(frozen=True, slots=True)
class Claim:
    """A claim of the paper and what comes out here, in the words of ``dljob reproduce --claims -o json``."""

    claim: str
    unit: str
    paper: tuple[float, ...]
    """The figures of one claim, such as one for each workload."""
    ours: tuple[float, ...]
    """Ours, in the same order; none where the claim is not tried."""
    better: Better
    in_sample: bool = False
    """Whether constants of ours were fitted to these figures."""
    why: str = ""
    """Why it differs, or why it is not tried."""

    @property
    def verdict(self) -> str:
        """Ours beside the paper's: better, equal within a tenth, worse, different or not tried, with counts if they differ."""
        if not self.ours:
            return "not tried"
        verdicts = [_judge(*pair, self.better) for pair in zip(self.paper, self.ours, strict=True)]
        counted = Counter(verdicts).most_common()
        if len(counted) == 1:
            return verdicts[0]
        return ", ".join(f"{count} {verdict}" for verdict, count in counted)


def _judge(paper: float, ours: float, better: Better) -> str:
    if abs(ours - paper) <= EQUAL_WITHIN * abs(paper):
        return "equal"
    if better is Better.NEARER:
        return "different"
    return "better" if (ours > paper) == (better is Better.HIGHER) else "worse"


@dataclass(frozen=True, slots=True)
class Reproduction:
    """All findings."""

    rows: tuple[Row, ...]
    claims: tuple[Claim, ...] = ()
    notes: tuple[str, ...] = ()
    """Notes that a reader of the figures needs, in sentences."""
