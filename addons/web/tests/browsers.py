"""
The programs of others that tests run: Chromium for pages, Node for Perfetto's trace processor, shells.

They are looked for on the path and else installed, as root on Debian. Where neither is possible a test is skipped;
with ``CI=true`` it fails.
"""

import functools
import shutil

from tests.servers.binaries import Unavailable, do_without
from tests.servers.packages import install


def find_chromium() -> str:
    return find_program("chromium")


def find_node() -> str:
    return find_program("node", package="nodejs")


def find_program(program: str, *, package: str = "") -> str:
    """Return the path of a program, whose package has its name or this one; or skip the test that wants it."""
    try:
        return provide(program, package or program)
    except Unavailable as error:
        do_without(error)


@functools.cache
def provide(program: str, package: str) -> str:
    """Find a program on the path or install it; raises :class:`Unavailable`."""
    if found := shutil.which(program):
        return found
    try:
        install([package])
    except Unavailable as error:
        raise Unavailable(f"there is no {program} on the path, and {error}") from error
    found = shutil.which(program)
    assert found is not None, f"the package {package} brings no {program}"
    return found
