"""
Finds files of a former run in the folder of a job's checkpoints when the job is submitted.
"""

import time
from pathlib import Path


def newest_in(folder: Path) -> str:
    """Name what was changed last in a folder and when; empty where there is nothing."""
    # Hidden names are the SideCar's own notes and what it has set aside.
    found = [(_changed(path), path.name) for path in _list(folder) if path.name[:1] != "."]
    if not found:
        return ""
    changed, name = max(found)
    return f"{name} ({time.strftime('%Y-%m-%d %H:%M', time.localtime(changed))})"


def _list(folder: Path) -> list[Path]:
    try:
        return [*folder.iterdir()]
    except OSError:
        return []


def _changed(path: Path) -> float:
    try:
        return path.lstat().st_mtime
    except OSError:
        return 0.0
