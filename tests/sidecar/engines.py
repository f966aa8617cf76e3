"""
What builds images and runs containers on this machine: docker with its engine, or buildah and runc.

Containers are as a careful cluster would run them: a root that can only be read, a user that is
not root, no capabilities, nothing to be gained by a setuid program.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import pytest

from tests.sidecar.drivers import HERE

TOOLS = "localhost/dljob-test-tools"
IMAGE = "localhost/dljob-test-sidecar"
SECONDS = 300


@dataclass(frozen=True)
class Seen:
    """A file or folder of this machine that a container sees."""

    at: str
    writable: bool = False


Mounts = Mapping[str, Seen]


class Engine(Protocol):
    def build(self, context: Path) -> None:
        """Make the image of Dockerfile.sidecar, of the tools and the files in ``context``."""

    def prepare(self, image: str, user: int, mounts: Mounts) -> tuple[str, ...]:
        """Return the words before a command that run it in a new container; "" is no image."""
        ...

    def describe(self) -> tuple[str, list[str]]:
        """Return the user of the image, and what it runs."""
        ...

    def close(self) -> None: ...


def run(*command: str, **environment: str) -> str:
    done = subprocess.run(
        command,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=SECONDS,
    )
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr[-2000:]}"
    return done.stdout


def find_tools() -> Path:
    """Return a busybox that needs no library, from which a stand-in for the image of tools is made."""
    busybox = shutil.which("busybox")
    # The name of a loader is what tells a program that needs libraries.
    if busybox is None or b"/ld-" in Path(busybox).read_bytes()[:4096]:
        pytest.skip("there is no static busybox here (on Debian the package busybox-static)")
    return Path(busybox)


class Docker:
    """Docker, whose engine runs already."""

    def build(self, context: Path) -> None:
        tools = context / "tools"
        (tools / "bin").mkdir(parents=True)
        shutil.copy(find_tools(), tools / "bin" / "busybox")
        archive = shutil.make_archive(str(context / "tools"), "tar", tools)
        run("docker", "import", archive, TOOLS)
        file = str(context / "Dockerfile.sidecar")
        given = ("--build-arg", f"TOOLS={TOOLS}", "--tag", IMAGE)
        run("docker", "build", "--file", file, *given, str(context), DOCKER_BUILDKIT="1")

    def prepare(self, image: str, user: int, mounts: Mounts) -> tuple[str, ...]:
        options = ["--rm", "--read-only", "--network=none", "--cap-drop=ALL"]
        options += ["--security-opt=no-new-privileges", f"--user={user}:{user}", "--entrypoint="]
        for source, seen in mounts.items():
            options.append(f"--volume={source}:{seen.at}:{'rw' if seen.writable else 'ro'}")
        return ("docker", "run", *options, image or TOOLS)

    def describe(self) -> tuple[str, list[str]]:
        [image] = json.loads(run("docker", "image", "inspect", IMAGE))
        config = image["Config"]
        return config["User"], [*config["Entrypoint"], *config["Cmd"]]

    def close(self) -> None:
        run("docker", "image", "rm", "--force", IMAGE, TOOLS)


class Buildah:
    """Buildah to build, in a storage of its own, and runc to run."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        settings = folder / "storage.conf"
        places = f'graphroot = "{folder}/graph"\nrunroot = "{folder}/run"\n'
        settings.write_text(f'[storage]\ndriver = "vfs"\n{places}', encoding="utf-8")
        self._environment = {"CONTAINERS_STORAGE_CONF": str(settings)}
        self._bundles = 0

    def _run(self, *words: str) -> str:
        return run("buildah", *words, **self._environment).strip()

    def build(self, context: Path) -> None:
        tools = self._run("from", "scratch")
        self._run("copy", "--quiet", tools, str(find_tools()), "/bin/busybox")
        self._run("commit", "--quiet", "--rm", tools, TOOLS)
        file = str(context / "Dockerfile.sidecar")
        given = ("--build-arg", f"TOOLS={TOOLS}", "--tag", IMAGE, "--isolation=chroot")
        self._run("build-using-dockerfile", "--pull-never", "--file", file, *given, str(context))

    def prepare(self, image: str, user: int, mounts: Mounts) -> tuple[str, ...]:
        self._bundles += 1
        bundle = self._folder / f"bundle-{self._bundles}"
        bundle.mkdir()
        rootfs = str(bundle / "rootfs")
        if image:
            rootfs = self._run("mount", self._run("from", "--pull-never", image))
        run("runc", "spec", "--bundle", str(bundle))
        file = bundle / "config.json"
        harden(config := json.loads(file.read_text()), rootfs, user)
        for source, seen in mounts.items():
            options = ["rbind", "nosuid", "nodev", "rw" if seen.writable else "ro"]
            mount = {"type": "bind", "source": source, "destination": seen.at, "options": options}
            config["mounts"].append(mount)
        make_places(Path(rootfs), [mount["destination"] for mount in config["mounts"]], mounts)
        file.write_text(json.dumps(config))
        return (sys.executable, "-S", str(HERE / "bundles.py"), str(bundle))

    def describe(self) -> tuple[str, list[str]]:
        config = json.loads(self._run("inspect", "--type", "image", IMAGE))["OCIv1"]["config"]
        return config["User"], [*config["Entrypoint"], *config["Cmd"]]

    def close(self) -> None:
        self._run("rm", "--all")
        self._run("rmi", "--all", "--force")


def harden(config: dict[str, Any], rootfs: str, user: int) -> None:
    """Change what runc proposes into what a careful cluster would ask for."""
    config["root"] = {"path": rootfs, "readonly": True}
    process = config["process"]
    process.update(terminal=False, user={"uid": user, "gid": user}, noNewPrivileges=True)
    process["capabilities"] = {}


def make_places(rootfs: Path, folders: list[str], mounts: Mounts) -> None:
    """Make what is mounted over, as it cannot be made in a root that can only be read."""
    files = {seen.at for source, seen in mounts.items() if Path(source).is_file()}
    for place in folders:
        target = rootfs / place.lstrip("/")
        (target.parent if place in files else target).mkdir(parents=True, exist_ok=True)
        if place in files:
            target.touch()


def find_engine(folder: Path) -> Engine:
    """Return what this machine has, or skip with the reason."""
    docker = shutil.which("docker")
    if (
        docker
        and subprocess.run([docker, "info"], capture_output=True, check=False).returncode == 0
    ):
        return Docker()
    if not (shutil.which("buildah") and shutil.which("runc")):
        pytest.skip("there is neither docker with its engine here, nor buildah with runc")
    if os.geteuid() != 0:
        pytest.skip("buildah and runc need root here")
    return Buildah(folder)
