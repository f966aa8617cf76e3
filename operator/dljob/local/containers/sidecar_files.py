"""
Makes the folder with the SideCar for containers: the archive, and the script that finds an interpreter.

It is made from the installed packages, once for each state folder and version of the sources.
"""

import hashlib
import importlib.util
import os
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

PACKAGES = ("dljob_sidecar", "dljob_wire", "tornado", "pynvml")
ARCHIVE, SCRIPT = "dljob-sidecar.pyz", "sidecar-start"
LEFT_OUT = "tornado/test/"


def ensure(base: Path) -> Path:
    """Return the folder with the SideCar of this installation below ``base``."""
    files = dict(_iter_files())
    script = (find_sidecar() / SCRIPT).read_bytes()
    folder = base / _digest(files, script)
    if not folder.is_dir():
        _make(folder, files, script=script)
    return folder


def _iter_files() -> Iterator[tuple[str, bytes]]:
    # Python finds a package without an __init__.py in an archive only by the entry of its folder.
    yield "dljob_sidecar/importable/dljob/", b""
    yield "__main__.py", (find_sidecar() / "__main__.py").read_bytes()
    for name in PACKAGES:
        origin = _find(name)
        if origin.name != "__init__.py":
            yield origin.name, origin.read_bytes()
            continue
        for file in sorted(origin.parent.rglob("*.py")):
            inner = str(file.relative_to(origin.parent.parent))
            if not inner.startswith(LEFT_OUT):
                yield inner, file.read_bytes()


def _find(name: str) -> Path:
    spec = importlib.util.find_spec(name)
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin)


def find_sidecar() -> Path:
    """Return the folder of this installation that Python runs as the SideCar."""
    return _find("dljob_sidecar").parents[1]


def _digest(files: dict[str, bytes], script: bytes) -> str:
    digest = hashlib.sha256(script)
    for name, content in files.items():
        digest.update(b"%s %d " % (name.encode(), len(content)))
        digest.update(content)
    return digest.hexdigest()[:16]


def _make(folder: Path, files: dict[str, bytes], *, script: bytes) -> None:
    """Make the folder under another name first, so that no container sees half of it."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    # The engine of each user reads it.
    folder.parent.chmod(0o755)
    part = Path(tempfile.mkdtemp(dir=folder.parent))
    with zipfile.ZipFile(part / ARCHIVE, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    (part / SCRIPT).write_bytes(script)
    (part / SCRIPT).chmod(0o755)
    (part / ARCHIVE).chmod(0o644)
    part.chmod(0o755)
    # Another controller may have made it meanwhile.
    try:
        os.rename(part, folder)  # noqa: PTH104 - Path.rename says the same
    except OSError:
        if not folder.is_dir():
            raise
