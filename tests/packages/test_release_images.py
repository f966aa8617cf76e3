"""``scripts/release_images.py`` and its parts: images and charts without an engine, the same bytes each time."""

import gzip
import io
import json
import re
import tarfile
from pathlib import Path

import pytest
import yaml

from tests.packages.distributions import ROOT, Distributions
from tests.released.rows import Archive
from tests.scripts import SCRIPTS, loaded

DIGEST = "sha256:" + "1" * 64
OTHER = "sha256:" + "2" * 64
DIGESTS = {"operator": DIGEST, "sidecar": OTHER}


@pytest.fixture
def images(monkeypatch):
    monkeypatch.syspath_prepend(str(SCRIPTS))
    with loaded("release_images.py") as module:
        yield module


@pytest.fixture
def manifests(monkeypatch):
    monkeypatch.syspath_prepend(str(SCRIPTS))
    with loaded("release_manifests.py") as module:
        yield module


def test_an_archive_depends_on_names_modes_and_contents_alone():
    with loaded("release_layouts.py") as layouts:
        entries = {
            "bin/tool": layouts.Entry(b"#!", 0o755),
            "bin/link": layouts.Entry(link="tool"),
            "tmp": layouts.folder(0o1777),
        }
        packed = layouts.compress(layouts.pack(entries))
        assert packed == layouts.compress(layouts.pack(dict(reversed(entries.items()))))
        with tarfile.open(fileobj=io.BytesIO(gzip.decompress(packed))) as archive:
            seen = {each.name: (each.mode, each.linkname, each.mtime) for each in archive}
        epoch = layouts.EPOCH
    assert seen == {
        "bin": (0o755, "", epoch),
        "bin/tool": (0o755, "", epoch),
        "bin/link": (0o777, "tool", epoch),
        "tmp": (0o1777, "", epoch),
    }


def test_both_architectures_have_each_package_of_debian_at_one_version(images):
    versions = {
        architecture: {each.name: each.version for each in images.locked_for(architecture)}
        for architecture in images.PLATFORMS
    }
    assert versions["amd64"] == versions["arm64"]
    assert set(versions["amd64"]) == {*images.PYTHON_PACKAGES, *images.TOOLS}
    assert all(re.fullmatch(r"[0-9a-f]{64}", each.digest) for each in images.read_lock())


def test_a_wheel_is_unpacked_where_pip_would_install_it(images, tmp_path):
    wheel = tmp_path / "tool-1.0-py3-none-any.whl"
    with images.zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("tool/__init__.py", "def main():\n    return 3\n")
        archive.writestr("tool-1.0.data/scripts/old", "#!python\nprint()\n")
        archive.writestr("tool-1.0.data/data/share/man/man1/tool.1", ".TH")
        archive.writestr("tool-1.0.dist-info/METADATA", "Name: Tool\nVersion: 1.0\n\ntext")
        points = "[other]\nx = a:b\n\n[console_scripts]\ntool = tool:main\n"
        archive.writestr("tool-1.0.dist-info/entry_points.txt", points)
    tree = images.make_packages([wheel])
    packages = "opt/dljob/lib/python3.11/site-packages"
    assert f"{packages}/tool/__init__.py" in tree
    assert tree["opt/dljob/bin/old"].content.startswith(b"#!/opt/dljob/bin/python\n")
    assert b"from tool import main" in tree["opt/dljob/bin/tool"].content
    assert "opt/dljob/bin/x" not in tree
    assert "opt/dljob/share/man/man1/tool.1" in tree
    compiled = tree[f"{packages}/tool/__pycache__/__init__.cpython-311.pyc"].content
    assert (
        compiled
        == images.make_packages([wheel])[
            f"{packages}/tool/__pycache__/__init__.cpython-311.pyc"
        ].content
    )
    described = images.describe_wheel(wheel)
    assert (described["purl"], described["version"]) == ("pkg:pypi/tool@1.0", "1.0")


def test_the_chart_and_install_yaml_name_the_images_by_digest(manifests, tmp_path):
    version = yaml.safe_load((ROOT / "manifests/chart/Chart.yaml").read_text())["version"]
    manifests.pack_chart(tmp_path, version, DIGESTS, "registry.example.org/gpu")
    packed = tmp_path / f"dljob-{version}.tgz"
    with tarfile.open(packed) as archive:
        opened = archive.extractfile("dljob/values.yaml")
        assert opened is not None
        values = yaml.safe_load(opened)
        assert ".helmignore" not in "".join(archive.getnames())
    assert values["image"]["repository"] == "registry.example.org/gpu/dljob-operator"
    assert values["image"]["digest"] == DIGEST
    assert values["sidecar"]["image"]["digest"] == OTHER
    assert values["store"]["deployed"]["image"]["digest"] == ""

    layout = Archive(tmp_path / f"dljob-chart-{version}.oci.tar")
    manifest = layout.document(layout.top())
    assert layout.document(manifest["config"])["name"] == "dljob"
    [layer] = manifest["layers"]
    assert layer["mediaType"] == "application/vnd.cncf.helm.chart.content.v1.tar+gzip"
    assert layout.read(layer) == packed.read_bytes()

    manifests.write_install(tmp_path / "install.yaml", version, DIGESTS, "")
    objects = [*yaml.safe_load_all((tmp_path / "install.yaml").read_text())]
    assert objects[0]["kind"] == "Namespace"
    text = json.dumps(objects)
    assert f"dljob-operator@{DIGEST}" in text
    assert f"dljob-sidecar@{OTHER}" in text
    assert f":{version}" not in text


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.timeout(1800)
def test_the_images_of_both_platforms_are_the_same_when_they_are_built_again(images, tmp_path):
    wheel = Distributions.build(tmp_path / "dist").wheel
    sidecar = tmp_path / "dljob-sidecar.pyz"
    build_sidecar(sidecar)
    built = []
    for name in ("first", "second"):
        folder = tmp_path / name
        folder.mkdir()
        images.build_operator(folder / "o.oci.tar", "1.2.3", ours=[wheel], registry="")
        images.build_sidecar(folder / "s.oci.tar", "1.2.3", archive=sidecar, registry="")
        built.append(folder)
    for file in built[0].iterdir():
        assert file.read_bytes() == (built[1] / file.name).read_bytes(), file.name
    for image in ("o", "s"):
        check_image(built[0] / f"{image}.oci.tar")
    listed = json.loads((built[0] / "o.cdx.json").read_text())["components"]
    names = {each["name"] for each in listed}
    assert {"dljob", "numpy", "kopf", "libssl3", "python3.11-minimal"} <= names
    assert all(each["hashes"] for each in listed)


def build_sidecar(target: Path) -> None:
    with loaded("build-sidecar") as script:
        script.write(script.collect(), target)


def check_image(file: Path) -> None:
    layout = Archive(file)
    found = layout.document(layout.top())["manifests"]
    assert [each["platform"]["architecture"] for each in found] == ["amd64", "arm64"]
    for each in found:
        manifest = layout.document(each)
        config = layout.document(manifest["config"])
        assert config["architecture"] == each["platform"]["architecture"]
        assert config["config"]["User"] == "65532:65532"
        assert len(config["rootfs"]["diff_ids"]) == len(manifest["layers"])
