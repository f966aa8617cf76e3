"""
How pictures may look: in which formats they are written, and how wide they are.

:mod:`dljob_lab.plots` draws by a :class:`Look`, and the verbs read options with these names. It is a module of
its own because the verbs must not load matplotlib for their options.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Format = Literal["png", "svg", "pdf"]
FORMATS: tuple[Format, ...] = ("png", "svg", "pdf")
USUAL: tuple[Format, ...] = ("png", "svg")
"""The formats that are written by default."""


@dataclass(frozen=True)
class Look:
    """How wide a picture is, and how large what is written in it."""

    width: float
    """Inches."""
    note_size: float
    """Points, of the text next to a title."""
    style: Mapping[Any, Any] = field(default_factory=dict, hash=False)
    """The differences from the style of all pictures."""
    is_narrow: bool = False
    """True if panels are below each other that are next to each other elsewhere."""


LOOKS: Mapping[str, Look] = {
    "page": Look(width=7.0, note_size=8.0),
    # The column of a paper in two columns is 3.3 to 3.5 inches wide, and its captions have 8 points.
    "column": Look(
        width=3.4,
        note_size=6.0,
        style={
            "axes.titlesize": 7.5,
            "font.size": 7.0,
            "legend.fontsize": 6.5,
            "lines.linewidth": 1.0,
            "xtick.labelsize": 6.5,
            "ytick.labelsize": 6.5,
        },
        is_narrow=True,
    ),
}
"""By the name that users type."""

PAGE = LOOKS["page"]
