"""
The record of ``dljob record`` as a picture in a notebook or a browser, and as a file.
"""

import base64
import builtins
import tempfile
import webbrowser
from collections.abc import Callable
from os import PathLike
from pathlib import Path
from typing import Any

from dljob.api.refusals import Problem, WrongUse
from dljob.client import exporting
from dljob.client.exporting import Format
from dljob.core.recording.record import Record
from dljob.sim.simulating import Outcome

HEIGHT = 560
"""The height of the picture in a notebook, in pixels."""


class Timeline:
    """GPUs over time with the reason of each change. The last expression of a cell shows it."""

    def __init__(self, record: Record) -> None:
        self.record = record

    @classmethod
    def of(cls, outcome: Outcome) -> "Timeline":
        """Read it from a simulation that was asked for its record: ``simulate(..., records=True)``."""
        if outcome.happenings is None:
            raise WrongUse(
                Problem("the simulation has no record", "call simulate with records=True")
            )
        return cls(outcome.happenings)

    @property
    def page(self) -> str:
        """A page for a browser that loads nothing."""
        return exporting.render(self.record, Format.HTML).decode()

    def save(self, path: str | PathLike[str]) -> Path:
        """Write it: a page (``.html``), a trace for Perfetto (``.pftrace``), else JSON lines."""
        file = Path(path)
        exporting.write_file(file, self.record)
        return file

    def show(self) -> None:
        """Show it: in the notebook, or else in the browser of this machine."""
        # IPython puts its function among the builtins; a plain Python has none.
        display: Callable[[Any], None] | None = getattr(builtins, "display", None)
        if display is not None:
            display(self)
            return
        folder = Path(tempfile.mkdtemp(prefix="dljob-timeline-"))
        webbrowser.open(self.save(folder / "timeline.html").as_uri())

    def _repr_html_(self) -> str:
        """Show the page in a frame that may run its own script and reach nothing of the notebook."""
        # Not srcdoc, where a page cannot keep its state in the address.
        address = f"data:text/html;base64,{base64.b64encode(self.page.encode()).decode()}"
        return (
            f'<iframe title="GPUs over time" sandbox="allow-scripts" src="{address}"'
            f' style="width: 100%; height: {HEIGHT}px; border: 0"></iframe>'
        )

    def __repr__(self) -> str:
        return f"<Timeline of {self.record.header.title or self.record.header.source}>"
