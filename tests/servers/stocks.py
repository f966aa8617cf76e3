"""
Images as nodes have them from their first moment: in a storage of containerd, which is copied for each node.

To unpack all images for every node of every run would take longer than most tests. So one storage is kept
beside the images, made again where one of them has changed, and nodes have its files as links. No
process writes
into such a file: containers write above their images, and only databases are changed in place, which are copied.
"""

import shutil
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.servers.processes import Server
from tests.servers.rooms import Room

STEP_SECONDS = 300.0
NAMESPACE = "k8s.io"
"""Where kubelets look for images."""

NO_PODS = 'disabled_plugins = ["io.containerd.grpc.v1.cri"]'
SERVES = "containerd successfully booted"
SERVES_PODS = "Start streaming server"
"""The last that its part for kubelets says before it answers them."""


@dataclass(frozen=True)
class Stock:
    """A storage that belongs to no node."""

    folder: Path

    def renew(self, room: Room, holds: str, write_archive: Callable[[Path], None]) -> None:
        """Have it hold these images, named by their contents, and no others."""
        if self._label.exists() and self._label.read_text() == holds:
            return
        if self.folder.exists():
            shutil.rmtree(self.folder)
        self._storage.mkdir(parents=True)
        with tempfile.TemporaryDirectory() as folder:
            archive = Path(folder) / "images.tar"
            write_archive(archive)
            _import(archive, self._storage, room, Path(folder))
        # Only now: an incomplete storage is useless.
        self._label.write_text(holds)

    def copy_to(self, storage: Path) -> None:
        is_near = storage.parent.stat().st_dev == self.folder.stat().st_dev
        links = ["--link"] if is_near else []
        command = ["cp", "--archive", *links, str(self._storage), str(storage)]
        subprocess.run(command, check=True, timeout=STEP_SECONDS)
        for database in storage.glob("*/*.db"):
            database.unlink()
            shutil.copy2(self._storage / database.relative_to(storage), database)

    @property
    def _storage(self) -> Path:
        return self.folder / "storage"

    @property
    def _label(self) -> Path:
        return self.folder / "holds"


class Containerd(Server):
    """A containerd with all its files except the storage in one folder."""

    def __init__(
        self, folder: Path, storage: Path, room: Room, *, settings: str, ready: str
    ) -> None:
        """
        ``settings`` are those that are its own: TOML, with plugins that are left out first.

        It serves when it says ``ready`` in its log: that it is reached is not enough for kubelets, which give
        up where they come before it knows what it has stored.
        """
        self._room = room
        self._ready = ready
        self._begin = 0
        """Where in its log that begins which it says of this start."""
        self.socket = folder / "containerd.sock"
        file = folder / "containerd.toml"
        places = f'version = 2\nroot = "{storage}"\nstate = "{folder}/run"\n'
        file.write_text(f'{places}{settings}\n[grpc]\n  address = "{self.socket}"\n', "utf-8")
        super().__init__(
            ["containerd", "--config", file],
            guard=room,
            log=folder / "containerd.log",
            is_ready=self._has_told,
        )

    def launch(self) -> None:
        self._begin = self.log.stat().st_size if self.log.exists() else 0
        super().launch()

    def ctr(self, *words: str | Path) -> str:
        command = ["ctr", "--address", self.socket, "--namespace", NAMESPACE, *words]
        return self._room.run(*command, seconds=STEP_SECONDS)

    def _has_told(self) -> bool:
        return self._ready in self.log.read_text(encoding="utf-8")[self._begin :]


def _import(archive: Path, storage: Path, room: Room, folder: Path) -> None:
    server = Containerd(folder, storage, room, settings=NO_PODS, ready=SERVES)
    server.start()
    try:
        server.ctr("images", "import", archive)
    finally:
        server.stop()
