"""
``dljob-sidecar run -- python train.py``: who keeps whom, and then the life of a SideCar.

The exit status is that of the training; 2 says that the command line is wrong, and 69 that the
SideCar could not begin. Little is imported here, because the keeper of a plain machine is this
process and stays as large as it is now: :mod:`dljob_sidecar.living` is left to its child.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

from dljob_sidecar import EXIT_UNAVAILABLE

AUTHORITIES = ("SSL_CERT_FILE", "SSL_CERT_DIR")
"""The variables with OpenSSL's places of public CAs."""


def main() -> int:
    """Run the command line, and return the exit status."""
    return run_if_complete(keep)


def keep() -> int:
    from dljob_sidecar.processes import keeper  # noqa: PLC0415 - it may be missing what it needs

    is_to_run = sys.argv[1:2] == ["run"]
    return keeper.keep(lambda: run_if_complete(live)) if is_to_run else live()


def live() -> int:
    # Tornado reads all CAs of the image on import. The SideCar trusts only the CA in its own
    # folder, and starts a tenth of a second earlier without the others. Tornado also tests for a
    # colour terminal, which the SideCar does not need.
    sys.modules["curses"] = None  # type: ignore[assignment]  # this is how Python spells it
    known = {name: os.environ[name] for name in AUTHORITIES if name in os.environ}
    os.environ.update(dict.fromkeys(AUTHORITIES, os.devnull))
    try:
        from dljob_sidecar import living  # noqa: PLC0415 - not in the keeper
    finally:
        for name in AUTHORITIES:
            del os.environ[name]
        # The training gets the original environment.
        os.environ.update(known)
    return living.run_command()


def run_if_complete(run: Callable[[], int]) -> int:
    """Run, unless the image's interpreter lacks a required module."""
    try:
        return run()
    except ModuleNotFoundError as error:
        sys.stderr.write(
            f"dljob-sidecar: InterpreterIncomplete: {sys.executable} has no module {error.name};"
            " install all of Python in the image (on Debian the package python3, not"
            " python3-minimal), or name another interpreter\n"
        )
        return EXIT_UNAVAILABLE


if __name__ == "__main__":
    sys.exit(main())
