"""The session of docs/walkthrough.md, typed exactly as printed, on two real nodes."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.cluster.clusters import Cluster, is_installed, values
from tests.cluster.jobs import as_text, replay
from tests.cluster.pages import ROOT, find_steps, go_through, opened_shell

PAGE = ROOT / "docs" / "walkthrough.md"
NAMESPACE = "team-a"


@pytest.fixture
def shell(bare: Cluster) -> Iterator[Path]:
    """A folder with the files that the page mentions."""
    with opened_shell(bare, NAMESPACE) as folder:
        for node in bare.nodes.nodes:
            labels = ("nvidia.com/gpu.count=4", "nvidia.com/gpu.product=A100")
            bare.kubectl("label", "node", node.name, "--overwrite", *labels)
        (folder / "values.yaml").write_text(yaml.safe_dump(dict(values())))
        for name, options in (("resnet", [2, 4, 8]), ("wide", [8])):
            job = replay(name, options, folder, framework="pytorch", processes="perGpu")
            (folder / f"{name}.yaml").write_text(as_text(job))
        yield folder


@pytest.mark.nodes
def test_session_looks_as_documented(bare: Cluster, shell: Path):
    go_through(find_steps(PAGE.read_text(encoding="utf-8")), shell, bare)
    assert not is_installed(bare)
