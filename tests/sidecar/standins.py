"""Libraries that stand in for those of hardware, compiled where they are needed."""

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.sidecar.drivers import HERE


def build_nvml(folder: Path) -> Path:
    """Compile NVML of a machine with two GPUs into this folder, and return the folder."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler here")
    made, source = folder / "libnvidia-ml.so.1", HERE / "standin_nvml.c"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", made, source], check=True)
    return folder
