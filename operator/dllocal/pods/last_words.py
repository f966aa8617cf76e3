"""
Why a SideCar that has ended did not become ready, as its log says it.

Once it is ready, a SideCar itself reports its problems; before that it cannot answer.
"""

import os
from pathlib import Path

LAST_BYTES = 1 << 14
COMPLAINS, READY = " ERROR ", " INFO ready; "
"""Parts of the lines in which a SideCar reports an error, and that it is ready."""
LONGEST_WORDS = 400


def last_words(log: Path) -> str:
    """Say why the latest start of a SideCar did not become ready, such as that it cannot open a file."""
    try:
        with log.open("rb") as file:
            file.seek(-min(LAST_BYTES, file.seek(0, os.SEEK_END)), os.SEEK_END)
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return ""
    words = ""
    for line in lines:
        if READY in line:
            words = ""  # Its state has the later problems.
        elif COMPLAINS in line:
            words = line.partition(COMPLAINS)[2]
    return "".join(each if each.isprintable() else "?" for each in words[:LONGEST_WORDS])
