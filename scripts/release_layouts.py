"""
Archives that are the same bytes whenever they are made: tar, gzip, and the layout of OCI for images and charts.

scripts/release_images.py and scripts/release_manifests.py fill them. Times, owners and the order of files are fixed; the
bytes of gzip also depend on the zlib of the Python that runs this.
"""

import hashlib
import io
import json
import stat
import tarfile
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

EPOCH = 1_577_836_800
"""The time of all files, the beginning of 2020."""
CREATED = "2020-01-01T00:00:00Z"
GZIP_HEADER = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff"
"""No name, no time, and no operating system."""

IMAGE_INDEX = "application/vnd.oci.image.index.v1+json"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
IMAGE_CONFIG = "application/vnd.oci.image.config.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"
CHART_CONFIG = "application/vnd.cncf.helm.config.v1+json"
CHART = "application/vnd.cncf.helm.chart.content.v1.tar+gzip"

Json = dict[str, Any]


@dataclass(frozen=True)
class Entry:
    """A file, a folder or a symbolic link."""

    content: bytes = b""
    mode: int = 0o644
    link: str = ""

    @property
    def is_folder(self) -> bool:
        return stat.S_ISDIR(self.mode)


Tree = Mapping[str, Entry]
"""Files by their paths, without a slash at the beginning."""


def folder(mode: int = 0o755) -> Entry:
    return Entry(mode=stat.S_IFDIR | mode)


def pack(tree: Tree) -> bytes:
    """Write a tar archive, with the folders that the paths of files need."""
    parents = {str(each) for path in tree for each in PurePosixPath(path).parents}
    everything = {**{path: folder() for path in parents - {"."}}, **tree}
    written = io.BytesIO()
    with tarfile.open(fileobj=written, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for path, entry in sorted(everything.items()):
            info = tarfile.TarInfo(path)
            info.mtime, info.mode = EPOCH, stat.S_IMODE(entry.mode)
            if entry.is_folder:
                info.type = tarfile.DIRTYPE
            elif entry.link:
                info.type, info.linkname, info.mode = tarfile.SYMTYPE, entry.link, 0o777
            info.size = len(entry.content)
            archive.addfile(info, io.BytesIO(entry.content))
    return written.getvalue()


def compress(content: bytes) -> bytes:
    """Compress with gzip."""
    packer = zlib.compressobj(6, zlib.DEFLATED, -zlib.MAX_WBITS)
    end = zlib.crc32(content).to_bytes(4, "little") + (len(content) & 0xFFFFFFFF).to_bytes(
        4, "little"
    )
    return b"".join((GZIP_HEADER, packer.compress(content), packer.flush(), end))


def name_digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


@dataclass(frozen=True)
class Layer:
    """A layer of an image, packed."""

    packed: bytes
    inside: str
    """The digest of what is packed."""

    @classmethod
    def of(cls, tree: Tree) -> "Layer":
        content = pack(tree)
        return cls(compress(content), name_digest(content))


class Layout:
    """An OCI layout that holds one image or one chart."""

    def __init__(self) -> None:
        self._blobs: dict[str, bytes] = {}

    def add(self, content: bytes, kind: str, **others: Any) -> Json:
        """Add a blob; return its descriptor."""
        digest = name_digest(content)
        self._blobs[digest] = content
        return {"mediaType": kind, "digest": digest, "size": len(content), **others}

    def add_document(self, document: Json, kind: str, **others: Any) -> Json:
        content = json.dumps(document, sort_keys=True, separators=(",", ":")).encode()
        return self.add(content, kind, **others)

    def add_image(self, platform: Json, layers: Iterable[Layer], config: Json) -> Json:
        """Add the image of one platform."""
        packed = list(layers)
        document = {
            "created": CREATED,
            "architecture": platform["architecture"],
            "os": platform["os"],
            "config": config,
            "rootfs": {"type": "layers", "diff_ids": [each.inside for each in packed]},
            "history": [{"created": CREATED, "created_by": "make release"} for _ in packed],
        }
        manifest = {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": self.add_document(document, IMAGE_CONFIG),
            "layers": [self.add(each.packed, LAYER) for each in packed],
        }
        return self.add_document(manifest, MANIFEST, platform=platform)

    def add_index(self, images: Iterable[Json], annotations: Json) -> Json:
        document = {
            "schemaVersion": 2,
            "mediaType": IMAGE_INDEX,
            "manifests": list(images),
            "annotations": annotations,
        }
        return self.add_document(document, IMAGE_INDEX)

    def add_chart(self, chart: bytes, described: Json) -> Json:
        """Add a packed chart, as ``helm push`` writes it; ``described`` is its Chart.yaml."""
        manifest = {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": self.add_document(described, CHART_CONFIG),
            "layers": [self.add(chart, CHART)],
            "annotations": {
                "org.opencontainers.image.title": described["name"],
                "org.opencontainers.image.version": described["version"],
                "org.opencontainers.image.description": described["description"],
            },
        }
        return self.add_document(manifest, MANIFEST)

    def write(self, target: Path, top: Json, *, tag: str, name: str = "") -> str:
        """
        Write the layout as one file, and return the digest by which it is pulled.

        ``name`` is the name that containerd gives to an image that it imports.
        """
        annotations = {"org.opencontainers.image.ref.name": tag}
        if name:
            annotations["io.containerd.image.name"] = f"{name}:{tag}"
        index = {"schemaVersion": 2, "manifests": [{**top, "annotations": annotations}]}
        tree = {
            "oci-layout": Entry(json.dumps({"imageLayoutVersion": "1.0.0"}).encode()),
            "index.json": Entry(json.dumps(index, sort_keys=True).encode()),
            **{
                f"blobs/{digest.replace(':', '/')}": Entry(content)
                for digest, content in self._blobs.items()
            },
        }
        target.write_bytes(pack(tree))
        digest: str = top["digest"]
        return digest
