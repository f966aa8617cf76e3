"""The output of the runner: whole lines, at once."""

import sys


def say(line: str = "") -> None:
    """Print a line, and do not keep it back: a run that is killed has printed it."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()
