"""Disks that are soon full."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest


def on_small_disk(folder: Path, *, size: int) -> tuple[str, ...]:
    """Start with a disk of its own in a folder, which no other process sees."""
    privately = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--mount", "-r"]
    mount = f'mount -t tmpfs -o size={size} none "$0"'
    tried = subprocess.run(
        [*privately, "sh", "-c", mount, folder], capture_output=True, check=False
    )
    if tried.returncode:
        pytest.skip(f"nothing can be mounted here: {tried.stderr.decode().strip()}")
    return (*privately, "sh", "-c", f'{mount} && exec "$@"', str(folder), sys.executable)


def fill(folder: Path) -> Path:
    """Take all that is left of the disk of this folder; returns what to remove for it."""
    filler = folder / "filler"
    descriptor = os.open(filler, os.O_WRONLY | os.O_CREAT)
    with os.fdopen(descriptor):
        while _takes_more(descriptor):
            pass
    return filler


def _takes_more(descriptor: int) -> bool:
    try:
        return os.write(descriptor, b"x" * 512) > 0
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        return False
