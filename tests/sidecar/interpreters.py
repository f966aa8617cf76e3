"""The interpreters of this machine that an image may also have."""

from __future__ import annotations

import shutil
from functools import cache
from pathlib import Path

import pytest

from tests.sidecar.drivers import run_program

VERSIONS = ["3.9", "3.10", "3.11", "3.12", "3.13"]
TOO_OLD = ["3.6", "3.7", "3.8"]


@cache
def has_python(version: str) -> str:
    """Return an interpreter that really runs; empty without one."""
    folders = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))
    named = shutil.which(f"python{version}")
    for python in [*map(str, folders), *([named] if named else [])]:
        tell = "import sys; print('%d.%d' % sys.version_info[:2])"
        ran = run_program([python, "-c", tell])
        if ran.stdout.strip() == version:
            return python
    return ""


def find_python(version: str) -> str:
    return has_python(version) or pytest.skip(f"there is no Python {version} here")
