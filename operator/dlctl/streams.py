"""
Where what is printed goes.

Standard output holds data and nothing else, so that programs can read it. A library in C may print to it
past Python, as the solver HiGHS does now and then under the policy ``sia``.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def divert_libraries() -> Iterator[None]:
    """Send to standard error what libraries print to standard output meanwhile."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)
