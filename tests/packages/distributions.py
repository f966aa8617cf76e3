"""The wheel and the sdist of this checkout, and environments in which they are installed."""

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Self

ROOT = Path(__file__).parents[2]

LONGEST_S = 300.0
"""Packages come over a network, on a machine that has other things to do."""


def run_here(*words: object, cwd: Path = ROOT) -> str:
    done = subprocess.run(
        [sys.executable, "-m", *map(str, words)],
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
        timeout=LONGEST_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@dataclass(frozen=True)
class Distributions:
    """The files that a release puts on an index."""

    wheel: Path
    sdist: Path

    @classmethod
    def build(cls, folder: Path) -> Self:
        """Build both of this checkout with the build backend of this environment."""
        run_here("hatchling", "build", "-d", folder)
        [wheel], [sdist] = folder.glob("*.whl"), folder.glob("*.tar.gz")
        return cls(wheel, sdist)

    def wheel_of_sdist(self, folder: Path) -> Path:
        """Make a wheel of the sdist, as pip does where no wheel fits."""
        run_here(
            *("pip", "wheel", "--quiet", "--disable-pip-version-check"),
            *("--no-deps", "--no-build-isolation", "--wheel-dir", folder, self.sdist),
        )
        [wheel] = folder.glob("*.whl")
        return wheel


class Bare:
    """An environment with one package in it and what that needs, for a user with no other."""

    def __init__(self, folder: Path, home: Path) -> None:
        self._bin = folder / "bin"
        self.home = home
        run_here("venv", folder)

    def install(self, *words: object) -> None:
        done = self.run("pip", "install", "--quiet", "--no-compile", *words)
        assert done.returncode == 0, done.stdout + done.stderr

    def run(self, program: str, *words: object) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self._bin / program, *map(str, words)],
            cwd=self.home,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=LONGEST_S,
        )

    def start(self, log: Path, program: str, *words: object) -> subprocess.Popen[bytes]:
        with log.open("wb") as file:
            return subprocess.Popen(
                [self._bin / program, *map(str, words)],
                cwd=self.home,
                env=self.environment,
                stdout=file,
                stderr=file,
            )

    @property
    def environment(self) -> dict[str, str]:
        """Nothing of this checkout is on the paths, and nothing of the user's other settings."""
        kept = {name: value for name, value in os.environ.items() if is_kept(name)}
        return {
            **kept,
            "HOME": str(self.home),
            "PATH": os.pathsep.join([str(self._bin), os.environ["PATH"]]),
        }


def is_kept(name: str) -> bool:
    """Keep how pip reaches an index, and what every program needs."""
    return not name.startswith(("PYTHON", "DLJOB", "KUBE", "COV", "VIRTUAL_ENV", "HOME"))
