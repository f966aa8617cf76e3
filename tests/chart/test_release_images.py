"""``scripts/release_images.py``: the images of a release, for two platforms, without a registry."""

import json
import sys
import tarfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.scripts import loaded
from tests.servers.binaries import entered
from tests.servers.images import Images, Released, run
from tests.sidecar.drivers import ROOT

# With the tests on real nodes, because it needs the same programs.
pytestmark = [pytest.mark.nodes, pytest.mark.slow]

ARCHITECTURES = ("amd64", "arm64")


@pytest.fixture(scope="module")
def place() -> Iterator[Released]:
    with entered(Images.in_cache().released(*ARCHITECTURES)) as released:
        yield released


def build(folder: Path, place: Released) -> Path:
    """Build the image of the SideCar, whose base is the only one that is here for both platforms."""
    sidecar = folder.with_suffix(".pyz")
    run([sys.executable, str(ROOT / "scripts" / "build-sidecar"), "--output", str(sidecar)])
    folder.mkdir()
    with loaded("release_images.py") as images:
        request = images.Request(engine="buildah", images=("sidecar",), options=place.options)
        images.build(request, folder, "1.2.3", sidecar=sidecar, run=partial(run_words, place))
    [archive] = folder.iterdir()
    assert archive.name == "dljob-sidecar-1.2.3.oci.tar"
    unpacked = folder / "unpacked"
    with tarfile.open(archive) as opened:
        opened.extractall(unpacked, filter="data")
    return unpacked


def run_words(place: Released, *words: object) -> None:
    run([*map(str, words)], environment=dict(place.variables))


def read(folder: Path, digest: str) -> Any:
    return json.loads((folder / "blobs" / digest.replace(":", "/")).read_text())


def list_manifests(folder: Path) -> list[Any]:
    [listed] = json.loads((folder / "index.json").read_text())["manifests"]
    found: list[Any] = read(folder, listed["digest"])["manifests"]
    # They are built at the same time, and come in the order in which they are finished.
    return sorted(found, key=lambda each: str(each["platform"]["architecture"]))


def test_an_archive_has_the_image_for_each_platform(place: Released, tmp_path: Path):
    folder = build(tmp_path / "first", place)
    manifests = list_manifests(folder)
    platforms = [each["platform"] for each in manifests]
    assert platforms == [{"architecture": each, "os": "linux"} for each in ARCHITECTURES]
    for each in manifests:
        manifest = read(folder, each["digest"])
        config = read(folder, manifest["config"]["digest"])
        assert config["architecture"] == each["platform"]["architecture"]
        assert config["config"]["User"] == "65532:65532"
        [layer] = manifest["layers"]
        with tarfile.open(folder / "blobs" / layer["digest"].replace(":", "/")) as files:
            carried = files.extractfile("sidecar/dljob-sidecar.pyz")
            assert carried is not None
            assert carried.read() == (ROOT / "dist" / "dljob-sidecar.pyz").read_bytes()


def test_the_same_sources_give_the_same_images(place: Released, tmp_path: Path):
    first, second = (build(tmp_path / name, place) for name in ("first", "second"))
    assert list_manifests(first) == list_manifests(second)
