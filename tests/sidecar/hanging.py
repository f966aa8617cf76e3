"""
A SideCar whose file system hangs on request, like a network file system without its server.

``python hanging.py FOLDER run …`` is ``dljob-sidecar run …``, but while ``FOLDER.hang`` exists, each
call about a file in FOLDER waits.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from typing import Any

from dljob_sidecar.__main__ import main

FOLDER = os.path.realpath(sys.argv.pop(1))
SIGN = FOLDER + ".hang"


def hanging(call: Callable[..., Any]) -> Callable[..., Any]:
    def wait_and_call(where: Any = ".", *rest: Any, **named: Any) -> Any:
        while is_in_folder(where) and os.access(SIGN, os.F_OK):
            time.sleep(0.01)
        return call(where, *rest, **named)

    return wait_and_call


def is_in_folder(where: Any) -> bool:
    if isinstance(where, int):
        # Calls about an open file hang as well.
        where = os.readlink(f"/proc/self/fd/{where}")  # noqa: PTH115 - which would ask us again
    return f"{os.fsdecode(where)}/".startswith(f"{FOLDER}/")


for name in ("stat", "lstat", "fstat", "statvfs", "scandir", "open", "read", "lseek"):
    setattr(os, name, hanging(getattr(os, name)))

if __name__ == "__main__":
    sys.exit(main())
