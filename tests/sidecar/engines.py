"""
Buildah and runc, which build images and run containers on this machine.

Containers are hardened: a read-only root, an unprivileged user, no capabilities, no new privileges.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from tests.sidecar.drivers import HERE

SECONDS = 600


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A Dockerfile of ours, and the stand-in for its base image."""

    file: str
    image: str
    """The name of the built image."""
    argument: str
    """The argument of the Dockerfile that names its base image."""
    base: str
    """The name of the stand-in for that one."""
    driver: str = "vfs"
    """Buildah's storage driver: vfs works everywhere, overlay does not copy large images."""


@dataclass(frozen=True)
class Seen:
    """A file or folder of this machine that a container sees."""

    at: str
    writable: bool = False


Mounts = Mapping[str, Seen]


class Described(NamedTuple):
    """The settings in an image's own configuration."""

    user: str
    command: list[str]
    """The command by default."""
    variables: list[str]
    labels: dict[str, str]

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Described:
        command = [*config["Entrypoint"], *(config.get("Cmd") or ())]
        variables = list(config.get("Env") or ())
        return cls(config["User"], command, variables, dict(config.get("Labels") or {}))


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


class Buildah:
    """Buildah to build, in a storage of its own, and runc to run."""

    def __init__(self, folder: Path, recipe: Recipe, *, bundles: Path | None = None) -> None:
        """Keep the storage in ``folder``, and runc's bundles in ``bundles`` or there too."""
        self._places = bundles if bundles is not None else folder
        self._recipe = recipe
        settings = folder / "storage.conf"
        places = f'graphroot = "{folder}/graph"\nrunroot = "{folder}/run"\n'
        settings.write_text(f'[storage]\ndriver = "{recipe.driver}"\n{places}', encoding="utf-8")
        self._environment = {"CONTAINERS_STORAGE_CONF": str(settings)}
        self._bundles = 0

    def _run(self, *words: str) -> str:
        return run("buildah", *words, **self._environment).strip()

    def build(self, context: Path, base: Path) -> None:
        recipe = self._recipe
        played = self._run("from", "scratch")
        self._run("copy", "--quiet", played, str(base), "/")
        self._run("commit", "--quiet", "--rm", played, recipe.base)
        given = ["--build-arg", f"{recipe.argument}={recipe.base}", "--tag", recipe.image]
        given += ["--isolation=chroot", "--pull-never", "--file", str(context / recipe.file)]
        self._run("build-using-dockerfile", *given, str(context))

    def prepare(self, user: int, mounts: Mounts) -> tuple[str, ...]:
        """Return the words before a command that run it in a new container."""
        self._bundles += 1
        bundle = self._places / f"bundle-{self._bundles}"
        bundle.mkdir()
        container = self._run("from", "--pull-never", self._recipe.image)
        rootfs = self._run("mount", container)
        run("runc", "spec", "--bundle", str(bundle))
        file = bundle / "config.json"
        harden(config := json.loads(file.read_text()), rootfs, user)
        config["process"]["env"] += self.describe().variables
        for source, seen in mounts.items():
            options = ["rbind", "nosuid", "nodev", "rw" if seen.writable else "ro"]
            mount = {"type": "bind", "source": source, "destination": seen.at, "options": options}
            config["mounts"].append(mount)
        make_places(Path(rootfs), [mount["destination"] for mount in config["mounts"]], mounts)
        file.write_text(json.dumps(config))
        return (sys.executable, "-S", str(HERE / "bundles.py"), str(bundle))

    def describe(self) -> Described:
        image = json.loads(self._run("inspect", "--type", "image", self._recipe.image))
        return Described.of(image["OCIv1"]["config"])

    def close(self) -> None:
        self._run("rm", "--all")
        self._run("rmi", "--all", "--force")


def harden(config: dict[str, Any], rootfs: str, user: int) -> None:
    """Harden the configuration that runc proposes."""
    config["root"] = {"path": rootfs, "readonly": True}
    process = config["process"]
    process.update(terminal=False, user={"uid": user, "gid": user}, noNewPrivileges=True)
    process["capabilities"] = {}


def make_places(rootfs: Path, folders: list[str], mounts: Mounts) -> None:
    """Make the mount points, which a read-only root could not get later."""
    files = {seen.at for source, seen in mounts.items() if Path(source).is_file()}
    for place in folders:
        target = rootfs / place.lstrip("/")
        (target.parent if place in files else target).mkdir(parents=True, exist_ok=True)
        if place in files:
            target.touch()
