"""Disks that are soon full."""

import itertools
import os
import subprocess
import sys
from pathlib import Path

import pytest

INODES = 3000


def on_small_disk(folder: Path, *, size: int) -> tuple[str, ...]:
    """Start with a disk of its own in a folder, which no other process sees."""
    privately = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--mount", "-r"]
    mount = f'mount -t tmpfs -o size={size},nr_inodes={INODES} none "$0"'
    tried = subprocess.run(
        [*privately, "sh", "-c", mount, folder], capture_output=True, check=False
    )
    if tried.returncode:
        pytest.skip(f"nothing can be mounted here: {tried.stderr.decode().strip()}")
    return (*privately, "sh", "-c", f'{mount} && exec "$@"', str(folder), sys.executable)


def fill(folder: Path, *, inodes: bool = False) -> Path:
    """Take all that is left of the disk of this folder, or all its inodes; returns what to remove for it."""
    filler = folder / "filler"
    filler.mkdir()
    with pytest.raises(OSError, match="No space left"):
        _take_all(filler, inodes=inodes)
    return filler


def _take_all(folder: Path, *, inodes: bool) -> None:
    with (folder / "space").open("wb", buffering=0) as space:
        for number in itertools.count():
            (folder / str(number)).touch() if inodes else space.write(b"x" * 512)
