"""
Packages of the distribution: those that real nodes need (a container runtime, its network plugins, and tools
for images), and what other tests install by name.
"""

import fcntl
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.servers.binaries import Unavailable

PACKAGES = (
    *("containerd", "runc", "containernetworking-plugins"),
    # Of kube-proxy, of the kubelet's port forwarding, and of its own checks.
    *("iptables", "nftables", "conntrack", "ethtool", "socat"),
    *("buildah", "debootstrap", "busybox-static"),
)
INSTALL_SECONDS = 900.0
LOCK = Path(tempfile.gettempdir()) / "dljob-test-packages.lock"


def ensure_packages() -> None:
    """Install those that are missing, or raise :class:`Unavailable`."""
    if os.geteuid() != 0:
        raise Unavailable("real nodes need root: control groups, mounts and networks of their own")
    install(PACKAGES)


def install(names: Sequence[str]) -> None:
    """Install those of these packages that are missing, or raise :class:`Unavailable`."""
    needed = ", ".join(names)
    if os.geteuid() != 0:
        raise Unavailable(f"only root installs packages of Debian: {needed}")
    if shutil.which("apt-get") is None:
        raise Unavailable(f"no apt-get, by which packages of Debian are installed: {needed}")
    with LOCK.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if missing := [name for name in names if not _is_installed(name)]:
            _apt("update", "-qq")
            _apt("install", "-qq", "--yes", "--no-install-recommends", *missing)


def _is_installed(name: str) -> bool:
    command = ["dpkg-query", "--show", "--showformat=${db:Status-Status}", name]
    asked = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    return asked.stdout == "installed"


def _apt(*words: str) -> None:
    quiet = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    ran = subprocess.run(
        ["apt-get", *words],
        env=quiet,
        capture_output=True,
        text=True,
        check=False,
        timeout=INSTALL_SECONDS,
    )
    if ran.returncode != 0:
        raise Unavailable(f"apt-get {' '.join(words)}: {ran.stderr.strip()[-1000:]}")
