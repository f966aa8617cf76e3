"""Building ``dljob-sidecar.pyz`` as `make sidecar` does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.sidecar.drivers import ROOT, run_program


def build(
    target: Path,
    *,
    root: Path = ROOT,
    python: tuple[str, ...] = (sys.executable,),
    umask: int = 0o022,
    **environment: str,
) -> subprocess.CompletedProcess[str]:
    """Write the archive of the checkout at ``root``, by that interpreter."""
    return run_program(
        [*python, str(root / "scripts" / "build-sidecar"), "--output", str(target)],
        env={**os.environ, **environment},
        umask=umask,
        cwd=target.parent,
    )
