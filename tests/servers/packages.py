"""
The packages of the distribution that real nodes need: a container runtime, its network plugins, and
tools for images.
"""

import fcntl
import os
import shutil
import subprocess
import tempfile
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
    if shutil.which("apt-get") is None:
        needed = ", ".join(PACKAGES)
        raise Unavailable(f"no apt-get, by which packages of Debian are installed: {needed}")
    with LOCK.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if missing := find_missing():
            _apt("update", "-qq")
            _apt("install", "-qq", "--yes", "--no-install-recommends", *missing)


def find_missing() -> list[str]:
    return [name for name in PACKAGES if not _is_installed(name)]


def _is_installed(name: str) -> bool:
    command = ["dpkg-query", "--show", "--showformat=${db:Status-Status}", name]
    asked = subprocess.run(command, capture_output=True, text=True, check=False)
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
