"""
A SideCar that outlasts a stall: it gives up no spare which is slow to become a training, and no slow reader of last words.

``python lenient.py -m dljob_sidecar run …`` is ``python -m dljob_sidecar run …``, but for this.
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
