"""The interpreters that an image may have, as far as this machine has them too."""

from __future__ import annotations

import shutil
import subprocess
from functools import cache
from pathlib import Path

import pytest

VERSIONS = ["3.9", "3.10", "3.11", "3.12", "3.13"]
TOO_OLD = ["3.6", "3.7", "3.8"]


@cache
def has_python(version: str) -> str:
    """Return an interpreter that runs, as a name on the path proves nothing; empty without one."""
    folders = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))
    named = shutil.which(f"python{version}")
    for python in [*map(str, folders), *([named] if named else [])]:
        tell = "import sys; print('%d.%d' % sys.version_info[:2])"
        ran = subprocess.run(
            [python, "-c", tell], capture_output=True, text=True, check=False, timeout=240
        )
        if ran.stdout.strip() == version:
            return python
    return ""


def find_python(version: str) -> str:
    return has_python(version) or pytest.skip(f"there is no Python {version} here")
