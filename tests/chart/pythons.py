"""
A stand-in for the image of Python that ``Dockerfile.operator`` stands on: the Python of this machine,
with the libraries that it is linked to, pip, and a shell. For tests only.
"""

import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from tests.sidecar.engines import find_tools

LEFT_OUT = shutil.ignore_patterns(
    "__pycache__",
    "test",
    "tests",
    "idlelib",
    "tkinter",
    "site-packages",
    "dist-packages",
    "config-*",
)
OF_LIBC = ("librt.so.1", "libdl.so.2", "libpthread.so.0", "libutil.so.1", "libresolv.so.2")
"""What comes with the C library, and packages from elsewhere are linked to."""
OF_THE_MACHINE = ("/etc/ssl/certs", "/etc/pip.conf")
"""By which pip finds its index, and believes it, where that takes something."""


def make_python(root: Path) -> Path:
    """Make it in a folder that is not there yet."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    programs, library = root / "usr/local/bin", root / "usr/local/lib" / version
    programs.mkdir(parents=True)
    executable = Path(sys.executable).resolve()
    shutil.copy(executable, programs / version)
    for name in ("python", "python3"):
        (programs / name).symlink_to(version)
    shutil.copytree(sysconfig.get_path("stdlib"), library, ignore=LEFT_OUT)
    pip = Path(sysconfig.get_path("purelib")) / "pip"
    shutil.copytree(
        pip, library / "site-packages" / "pip", ignore=shutil.ignore_patterns("__pycache__")
    )
    _add_shell(root)
    # Of what comes later, numpy stands for all that is not written in Python.
    linked = [
        executable,
        *library.glob("lib-dynload/*.so"),
        *Path(np.__file__).parent.rglob("*.so"),
    ]
    for each in sorted(set(_iter_libraries(linked))):
        # Python's own library may be with it, in a place that nobody would look into there.
        at = (
            root / "usr/lib" / each.name
            if "libpython" in each.name
            else root / each.relative_to("/")
        )
        at.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(each, at)
    return root


def _add_shell(root: Path) -> None:
    (root / "bin").mkdir()
    shutil.copy(find_tools(), root / "bin" / "busybox")
    (root / "bin" / "sh").symlink_to("busybox")
    (root / "tmp").mkdir()
    (root / "tmp").chmod(0o1777)


def _iter_libraries(programs: Iterable[Path]) -> Iterator[Path]:
    """Name the libraries of the system that these are linked to, and what loads them."""
    for program in programs:
        ran = subprocess.run(["ldd", program], capture_output=True, text=True, check=False)
        for found in re.findall(r"(/\S+) \(0x", ran.stdout):
            if found.startswith(("/lib", "/usr/lib")) or "libpython" in found:
                yield Path(found)
            if found.endswith("/libc.so.6"):
                more = (Path(found).with_name(name) for name in OF_LIBC)
                yield from (each for each in more if each.exists())
