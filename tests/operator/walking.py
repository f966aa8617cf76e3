"""
An operator that notes through which files its first walk goes: ``python -m tests.operator.walking OUT ...``.

For each step of docs/walks.md, OUT gets the files of ours that are in the stack when the function of
the step is called for the first time: a reader passes them on the way there.
"""

import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any

from dljob.operator.__main__ import main
from tests.project.test_walks import ROOT, WALKS, steps

BEGINNINGS = {"operator/dljob/operator/__main__.py", "operator/dljob/operator/operating.py"}
"""The start of the program, before any job."""


def trace(out: Path) -> None:
    waited = set(first_walk())

    def note(frame: FrameType, event: str, _: Any) -> None:
        step = (frame.f_code.co_filename.removeprefix(f"{ROOT}/"), frame.f_code.co_qualname)
        if event != "call" or step not in waited:
            return
        waited.discard(step)
        at: FrameType | None = frame
        with out.open("a", encoding="utf-8") as stream:
            while at is not None:
                stream.write(at.f_code.co_filename.removeprefix(f"{ROOT}/") + "\n")
                at = at.f_back

    sys.setprofile(note)
    threading.setprofile(note)


def first_walk() -> list[tuple[str, str]]:
    [_, first, *_] = WALKS.read_text(encoding="utf-8").split("\n## ")
    return steps(first)


def find_unnamed(out: Path) -> set[str]:
    """The files of the first walk that the page lacks."""
    named = {file for file, _ in first_walk()}
    passed = {file for file in out.read_text(encoding="utf-8").split() if "/dl" in file[:12]}
    return passed - named - BEGINNINGS


if __name__ == "__main__":
    trace(Path(sys.argv.pop(1)))
    main()
