"""
``dljob-sidecar run -- python train.py``: who keeps whom, and then the life of a SideCar.

The exit status is that of the training; 2 says that the command line is wrong, and 69 that the
SideCar could not begin. Little is imported here, because the keeper of a plain machine is this
process and stays as large as it is now: :mod:`dlsidecar.living` is left to its child.
"""

from __future__ import annotations

import sys

from dlsidecar import keeping


def main() -> int:
    """Run the command line, and return the exit status."""
    is_to_run = sys.argv[1:2] == ["run"]
    return keeping.keep(live) if is_to_run else live()


def live() -> int:
    from dlsidecar import living  # noqa: PLC0415 - not in the keeper

    return living.run_command()


if __name__ == "__main__":
    sys.exit(main())
