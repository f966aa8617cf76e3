"""
A picture of a demonstration's terminal, for those who read about it: one moment, and the end.

The SVG is self-contained: rich's own export loads fonts from other servers, and this one uses the
viewer's fonts.
"""

import io
import re
from collections.abc import Iterable
from pathlib import Path

from rich.console import Console, RenderableType
from rich.terminal_theme import MONOKAI

from dljob.sim.results import writing
from dljob_lab.demonstrating.viewing import WIDTH, Picture

_FONTS = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)


class Film:
    """Takes its one picture at the given moment."""

    def __init__(self, picture: Picture, moment: float) -> None:
        self._picture = picture
        self._moment = moment
        self._console = Console(
            record=True, width=WIDTH + 2, file=io.StringIO(), force_terminal=True
        )
        self._is_taken = False

    def update(self) -> None:
        """Take it, if it is time; to be called now and then."""
        if not self._is_taken and self._picture.second >= self._moment:
            self._is_taken = True
            self._console.print("[bold]$ dljob demo[/]")
            self._console.print(self._picture)

    def finish(self, path: Path, end: Iterable[RenderableType]) -> None:
        """Add how it ended, and write all of it."""
        for part in end:
            self._console.print()
            self._console.print(part)
        svg = self._console.export_svg(title="dljob demo", theme=MONOKAI)
        writing.write_text(path, _FONTS.sub("", svg))
