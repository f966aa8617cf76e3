"""
Build the images of a release as OCI archives, for several platforms at once and without a registry.

    dljob-operator-VERSION.oci.tar    the operator, the extender and the command
    dljob-sidecar-VERSION.oci.tar     brings the SideCar into pods

`skopeo copy --all oci-archive:FILE docker://REGISTRY/NAME:TAG` publishes one, and `ctr images import --platform linux/amd64
FILE` loads it into a node. To build for a platform that is not the machine's own, the machine needs QEMU for it
(on Debian the package qemu-user-static), because the operator's image runs Python while it is built.
"""

import os
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PLATFORMS = "linux/amd64,linux/arm64"
EPOCH = 1_577_836_800
"""The time of all files in the images, the beginning of 2020, so that the same sources give the same layers."""


IMAGES = ("operator", "sidecar")
"""Each has a Dockerfile of this name."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """The images that are asked for."""

    engine: str
    images: Sequence[str] = IMAGES
    platforms: str = PLATFORMS
    options: Sequence[str] = ()
    """More words for each build, such as ``--build-arg=PYTHON=…@sha256:…``."""


def build(
    request: Request, folder: Path, version: str, *, sidecar: Path, run: Callable[..., None]
) -> None:
    """
    Write an archive of each image.

    ``sidecar`` is the SideCar as one file; ``run`` runs a program and ends with its message where it fails.
    """
    # Dockerfile.sidecar takes it from there.
    taken = ROOT / "dist" / "dljob-sidecar.pyz"
    taken.parent.mkdir(exist_ok=True)
    shutil.copyfile(sidecar, taken)
    for image in request.images:
        target = folder / f"dljob-{image}-{version}.oci.tar"
        sys.stderr.write(f"builds {target.name} for {request.platforms}\n")
        given = (f"--platform={request.platforms}", f"--file={ROOT / f'Dockerfile.{image}'}")
        ENGINES[request.engine](image, target, given=(*given, *request.options), run=run)


def _build_by_docker(
    _: str, target: Path, *, given: Sequence[str], run: Callable[..., None]
) -> None:
    # A statement of where it was built would name this machine, and make each build another image.
    plain = ("--provenance=false", f"--build-arg=SOURCE_DATE_EPOCH={EPOCH}")
    output = f"--output=type=oci,dest={target},rewrite-timestamp=true"
    run("docker", "buildx", "build", *given, *plain, output, ROOT)


def _build_by_buildah(
    image: str, target: Path, *, given: Sequence[str], run: Callable[..., None]
) -> None:
    # Under the name of an earlier build the images would be added to those of that build.
    listed = f"localhost/dljob-release-{image}:{os.getpid()}"
    run("buildah", "build", *given, f"--timestamp={EPOCH}", f"--manifest={listed}", ROOT)
    run("buildah", "manifest", "push", "--all", listed, f"oci-archive:{target}:{image}")
    run("buildah", "manifest", "rm", listed)


ENGINES = {"docker": _build_by_docker, "buildah": _build_by_buildah}
