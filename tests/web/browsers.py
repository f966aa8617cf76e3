"""
The programs of others in which tests open what we write: Chromium for pages, Node for Perfetto's trace processor.

They are looked for on the path and else installed, as root on Debian. Where neither is possible a test is skipped;
with ``CI=true`` it fails.
"""

import functools
import shutil

from tests.servers.binaries import Unavailable, do_without
from tests.servers.packages import install


def find_chromium() -> str:
    return _find("chromium", package="chromium")


def find_node() -> str:
    return _find("node", package="nodejs")


@functools.cache
def _find(program: str, *, package: str) -> str:
    if found := shutil.which(program):
        return found
    try:
        install([package])
    except Unavailable as error:
        do_without(Unavailable(f"there is no {program} on the path, and {error}"))
    found = shutil.which(program)
    assert found is not None, f"the package {package} brings no {program}"
    return found
