"""The attacks at full length (``make attack``); ``make deep`` runs their short form. The exit status is that of pytest."""

import os
import sys
from pathlib import Path

import pytest


def main() -> int:
    os.environ |= {"DLJOB_ATTACK": "full", "HYPOTHESIS_PROFILE": "thorough"}
    folder = Path(__file__).parent
    return int(pytest.main(["-p", "no:cacheprovider", "--timeout=7200", "-v", str(folder)]))


if __name__ == "__main__":
    sys.exit(main())
