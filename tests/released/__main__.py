"""
Install each part of a release in a bare place, and print a table of the part, the place and the result.

``python -m tests.released dist/release``, which ``make release-check`` runs. A part that fails ends the run with status 1
at its end; a place that is not to be had here is named with the reason, and with ``CI=true`` it is a failure.
"""

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.released import on_clusters, on_machines
from tests.released.rows import Check, Files
from tests.servers.binaries import Unavailable

PLACES: tuple[Callable[[Files, Path], Iterator[Check]], ...] = (
    on_machines.checks,
    on_clusters.checks,
)


def main() -> int:
    parser = argparse.ArgumentParser(description="Install a release in bare places.")
    parser.add_argument("release", type=Path)
    parser.add_argument("--only", default="", help="the checks whose part has this word")
    given = parser.parse_args()
    failed = 0
    with tempfile.TemporaryDirectory(prefix="dljob-release-") as folder:
        for place in PLACES:
            found = place(Files(given.release.resolve()), Path(folder))
            failed += sum(not perform(each) for each in found if given.only in each.part)
    return 1 if failed else 0


def perform(check: Check) -> bool:
    """Run a check, and print its row as soon as it is known."""
    begin = time.monotonic()
    is_good = True
    try:
        found = check.run()
    except Unavailable as error:
        found, is_good = f"not here: {error}", os.environ.get("CI") != "true"
    except Exception as error:  # noqa: BLE001 - the other parts are checked all the same
        found, is_good = f"FAILED: {error}", False
    seconds = time.monotonic() - begin
    sys.stdout.write(f"{check.part:<28} {check.place:<40} {seconds:>5.0f} s  {found}\n")
    sys.stdout.flush()
    return is_good


if __name__ == "__main__":
    sys.exit(main())
