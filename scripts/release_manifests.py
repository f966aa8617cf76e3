"""
Pack the chart of a release and write its install.yaml, which name the images by their digests.

    dljob-VERSION.tgz              the chart, for `helm install`
    dljob-chart-VERSION.oci.tar    the same as an OCI layout, as `helm push` would write it to a registry
    install.yaml                   manifests/install in one file, for `kubectl apply --server-side -f`
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from release_layouts import Entry, Layout, compress, pack

ROOT = Path(__file__).resolve().parent.parent
CHART = ROOT / "manifests" / "chart"
INSTALL = ROOT / "manifests" / "install"

Digests = Mapping[str, str]
"""The digest of each image, ``operator`` and ``sidecar``."""


def pack_chart(folder: Path, version: str, digests: Digests, registry: str) -> None:
    """Write the chart as an archive and as an OCI layout."""
    described: dict[str, Any] = yaml.safe_load((CHART / "Chart.yaml").read_text("utf-8"))
    tree = {}
    for path in sorted(CHART.rglob("*")):
        name = str(path.relative_to(CHART))
        if path.is_file() and name != ".helmignore":
            content = path.read_bytes()
            if name == "values.yaml":
                content = name_images(content.decode(), digests, registry).encode()
            tree[f"dljob/{name}"] = Entry(content)
    packed = compress(pack(tree))
    (folder / f"dljob-{version}.tgz").write_bytes(packed)
    layout = Layout()
    top = layout.add_chart(packed, described)
    layout.write(folder / f"dljob-chart-{version}.oci.tar", top, tag=version)


def name_images(values: str, digests: Digests, registry: str) -> str:
    """Return the chart's values with the images of this release."""
    for image, digest in digests.items():
        prefix = f"{registry}/" if registry else ""
        values, count = re.subn(
            rf'^(\s*)repository: dljob-{image}\n((?:\1.*\n)*?)\1digest: ""$',
            rf"\1repository: {prefix}dljob-{image}\n\2\1digest: {digest}",
            values,
            flags=re.MULTILINE,
        )
        assert count == 1, f"values.yaml does not name the image of the {image} once"
    return values


def write_install(target: Path, version: str, digests: Digests, registry: str) -> None:
    """Write what `kubectl kustomize manifests/install` prints, with the comments."""
    text = "---\n".join(iter_manifests(INSTALL))
    prefix = f"{registry}/" if registry else ""
    for image, digest in digests.items():
        name = f"dljob-{image}"
        text, count = re.subn(
            rf"\b(image: ){name}:{re.escape(version)}$",
            rf"\g<1>{prefix}{name}@{digest}",
            text,
            flags=re.MULTILINE,
        )
        assert count == 1, f"{INSTALL} does not name the image of the {image} once"
    target.write_text(text, encoding="utf-8")


def iter_manifests(folder: Path) -> Iterator[str]:
    """Yield the files that a kustomization names, namespaces first, because other objects are in them."""
    file = folder / "kustomization.yaml"
    resources: list[str] = yaml.safe_load(file.read_text(encoding="utf-8"))["resources"]
    for each in sorted(resources, key=lambda name: name != "namespace.yaml"):
        path = folder / each
        if path.is_dir():
            yield from iter_manifests(path)
        else:
            yield path.read_text(encoding="utf-8").removeprefix("---\n")
