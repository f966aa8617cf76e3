"""
A SideCar that outlasts a stall: it gives up no spare which is slow to become a training, and no slow reader of last words.

``python lenient.py -m dlsidecar run …`` is ``python -m dlsidecar run …``, but for this.
"""

from __future__ import annotations

import sys

from dlsidecar import assembling
from dlsidecar.__main__ import main
from dlsidecar.warm.warming import SparePool

SparePool.answer_seconds = 600.0
assembling.LAST_WORDS_SECONDS = 60.0

if __name__ == "__main__":
    del sys.argv[1:3]
    sys.exit(main())
