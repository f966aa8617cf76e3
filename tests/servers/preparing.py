"""
Makes everything that tests want and that takes long, before they run: servers, packages, images.

``python -m tests.servers.preparing``, which ``make servers`` runs. What is there already takes a second. What cannot be had is
named with its reason; the tests that want it are then skipped, but with ``CI=true`` this is a failure.
"""

import os
import sys
import time
from collections.abc import Callable
from functools import partial

from addons.web.tests.browsers import provide
from tests.servers.binaries import KITS, Kit, Unavailable, find_all
from tests.servers.images import Images
from tests.servers.packages import ensure_packages
from tests.servers.realnodes import open_room


def find_kit(kit: Kit) -> str:
    return ", ".join(str(path) for path in find_all(kit).values())


def make_images() -> str:
    """Build the images of the operator, the SideCar and a training, for nodes that are closed again."""
    ensure_packages()
    with open_room(1) as room, Images.in_cache().all_built(room):
        return "built"


def main() -> int:
    """Make one after the other, and print each as it comes."""
    wanted: dict[str, Callable[[], str]] = {kit.noun: partial(find_kit, kit) for kit in KITS}
    if os.geteuid() == 0:
        wanted["Chromium"] = partial(provide, "chromium", "chromium")
        wanted["images of real nodes"] = make_images
    missing = 0
    for noun, make in wanted.items():
        begin = time.monotonic()
        try:
            found = make()
        except Unavailable as error:
            missing += 1
            found = f"not to be had: {error}"
        sys.stdout.write(f"{noun} ({time.monotonic() - begin:.0f} s): {found}\n")
        sys.stdout.flush()
    return 1 if missing and os.environ.get("CI") == "true" else 0


if __name__ == "__main__":
    sys.exit(main())
