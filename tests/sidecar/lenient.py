"""
A SideCar that waits long for spares and for readers of the last output, so that it outlasts a stall.

``python lenient.py -m dljob_sidecar run …`` replaces ``python -m dljob_sidecar run …``.
"""

from __future__ import annotations

import sys

from dljob_sidecar import assembling
from dljob_sidecar.__main__ import main
from dljob_sidecar.warm.warming import SparePool

SparePool.answer_seconds = 600.0
assembling.LAST_WORDS_SECONDS = 60.0

if __name__ == "__main__":
    del sys.argv[1:3]
    sys.exit(main())
