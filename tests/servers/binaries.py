"""
Where the servers of the tests come from: found, or built once into a cache.

Looked for in the folder that ``DLJOB_TEST_SERVERS`` names, on the path, and in a cache that is keyed
by the pins; built into that cache where there is Go. Without any of these the tests that need the
server are skipped and say why, but with ``CI=true`` they fail.

To build beforehand: ``python -m tests.servers.binaries``.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

FOLDER = "DLJOB_TEST_SERVERS"
FERRETDB = "dljob-test-ferretdb"
SOURCE = Path(__file__).parent / "ferretdb"
PINS = ("go.mod", "go.sum", "main.go")
TAGS = "ferretdb_no_postgresql,ferretdb_no_mysql,ferretdb_no_hana"
BUILD_SECONDS = 1500.0


class Unavailable(Exception):
    """There is no such server here, and why."""


def find_ferretdb() -> Path:
    """Return the server of the MongoDB protocol, or skip the test that wants it."""
    try:
        return find_or_build(dict(os.environ))
    except Unavailable as error:
        if os.environ.get("CI") == "true":
            pytest.fail(f"no server of the MongoDB protocol: {error}", pytrace=False)
        pytest.skip(f"no server of the MongoDB protocol: {error}")


def find_or_build(environment: dict[str, str]) -> Path:
    """Return the server: an explicit one, one on the path, a cached one, or a new one."""
    return find(environment) or build(cache_folder(environment), environment)


def find(environment: dict[str, str]) -> Path | None:
    """Return the server if it was made before."""
    path = environment.get("PATH", "").split(os.pathsep)
    folders = [environment.get(FOLDER, ""), *path, str(cache_folder(environment))]
    for folder in folders:
        found = Path(folder) / FERRETDB
        if folder and os.access(found, os.X_OK):
            return found
    return None


def cache_folder(environment: dict[str, str]) -> Path:
    """Where binaries of these very pins are."""
    home = Path(environment.get("XDG_CACHE_HOME") or Path(environment["HOME"]) / ".cache")
    pins = hashlib.sha256(b"\0".join((SOURCE / name).read_bytes() for name in PINS))
    return home / "dljob-test-servers" / pins.hexdigest()[:12]


def build(cache: Path, environment: dict[str, str]) -> Path:
    """Build the server into the cache, once for all who want it at the same time."""
    go = shutil.which("go", path=environment.get("PATH"))
    if go is None:
        raise Unavailable(f"there is none in {FOLDER}, PATH or {cache}, and no Go to build it")
    binary = cache / FERRETDB
    with locked(cache), tempfile.TemporaryDirectory(dir=cache) as folder:
        if not binary.exists():
            built = Path(folder) / FERRETDB
            compile_ferretdb(go, built, environment)
            built.replace(binary)
    return binary


@contextmanager
def locked(cache: Path) -> Iterator[None]:
    """Wait until nobody else builds; a lock of the kernel, so that nobody's end leaves it behind."""
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def compile_ferretdb(go: str, binary: Path, environment: dict[str, str]) -> None:
    # The Go of this machine or none: another would be fetched without anybody having asked.
    settings = {"GOTOOLCHAIN": "local", "CGO_ENABLED": "0", "GOFLAGS": "-buildvcs=false"}
    command = [go, "build", "-trimpath", "-ldflags=-s -w", f"-tags={TAGS}", "-o", str(binary), "."]
    try:
        built = subprocess.run(
            command,
            cwd=SOURCE,
            env=environment | settings,
            capture_output=True,
            text=True,
            check=False,
            timeout=BUILD_SECONDS,
        )
    except subprocess.TimeoutExpired as error:
        raise Unavailable(f"building it took more than {BUILD_SECONDS:.0f} s") from error
    if built.returncode != 0:
        lines = built.stderr.strip().splitlines() or ["nobody says why"]
        raise Unavailable(f"it cannot be built with {go}: {lines[-1]}")


if __name__ == "__main__":
    find_or_build(dict(os.environ))
