"""
Pictures into a folder: as PNG, to look at, as SVG and as PDF, to put into a page or a paper.

Imported only by those who draw, because matplotlib takes its time to load.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.figure import Figure

from dljob.cli.output.messages import say
from dljob.sim.results import plots, writing
from dljob.sim.results.looks import USUAL, Format


def write_pictures(
    folder: Path, figures: Mapping[str, Figure], *, forms: Sequence[Format] = USUAL
) -> None:
    """Write all of them, each whole or not at all."""
    for name, figure in figures.items():
        for form in forms:
            writing.write_bytes(folder / f"{name}.{form}", plots.render(figure, form))
    count = len(figures) * len(forms)
    say(f"{count} pictures are in {folder}/" if count else "there is nothing to draw")
