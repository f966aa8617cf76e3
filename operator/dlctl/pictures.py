"""
Pictures into a folder: each as PNG, to look at, and as SVG, to put into a paper.

Imported only by those who draw, because matplotlib takes its time to load.
"""

from collections.abc import Mapping
from pathlib import Path

from matplotlib.figure import Figure

from dlctl import writing
from dlctl.messages import say
from dlsim import plots


def write_pictures(folder: Path, figures: Mapping[str, Figure]) -> None:
    """Write all of them, each whole or not at all."""
    for name, figure in figures.items():
        for form in plots.FORMATS:
            writing.write_bytes(folder / f"{name}.{form}", plots.render(figure, form))
    count = len(figures) * len(plots.FORMATS)
    say(f"{count} pictures are in {folder}/" if count else "there is nothing to draw")
