"""The rows of the table of ``make release-check``, and the files of the release that they install."""

import json
import os
import subprocess
import tarfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.packages.distributions import is_kept

SECONDS = 900.0


@dataclass(frozen=True)
class Check:
    """A part of the release, the place where it is installed, and how that is done."""

    part: str
    place: str
    run: Callable[[], str]
    """Returns what was seen; raises :class:`AssertionError` where it was not as it has to be."""


@dataclass(frozen=True)
class Files:
    """The files of a release."""

    folder: Path

    def find(self, pattern: str) -> Path:
        [found] = self.folder.glob(pattern)
        return found

    @property
    def wheel(self) -> Path:
        return self.find("dljob-*.whl")

    @property
    def version(self) -> str:
        return self.wheel.name.split("-")[1]

    @property
    def images(self) -> dict[str, Path]:
        return {name: self.find(f"dljob-{name}-*.oci.tar") for name in ("operator", "sidecar")}


class Archive:
    """An OCI layout in one file, whose blobs have the digests that name them."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def top(self) -> Any:
        with tarfile.open(self._file) as archive:
            opened = archive.extractfile("index.json")
            assert opened is not None
            [image] = json.load(opened)["manifests"]
        return image

    def read(self, descriptor: Mapping[str, Any]) -> bytes:
        with tarfile.open(self._file) as archive:
            opened = archive.extractfile(f"blobs/{descriptor['digest'].replace(':', '/')}")
            assert opened is not None
            return opened.read()

    def document(self, descriptor: Mapping[str, Any]) -> Any:
        return json.loads(self.read(descriptor))


def say(*words: object, home: Path, **variables: str) -> str:
    """Run a program with nothing of the user's settings; return what it prints."""
    kept = {name: value for name, value in os.environ.items() if is_kept(name)}
    done = subprocess.run(
        [*map(str, words)],
        cwd=home,
        env={**kept, "HOME": str(home), **variables},
        capture_output=True,
        text=True,
        check=False,
        timeout=SECONDS,
    )
    said = f"{done.stdout}{done.stderr}".strip()
    assert done.returncode == 0, f"{Path(str(words[0])).name} {words[1:3]}: {said[-600:]}"
    return said
