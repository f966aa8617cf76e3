"""
The commands of docs/quickstart-kind.md and of the README about a cluster, typed on two real nodes.

These nodes have no Docker, so the commands that build images, make and remove a cluster are skipped, and
the images of the tests replace those of the pages.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.clusters import Cluster, uninstall
from tests.cluster.pages import ROOT, find_commands, find_steps, go_through, opened_shell, type_in
from tests.servers.images import OPERATOR, SIDECAR, TRAINER

pytestmark = [pytest.mark.nodes, pytest.mark.timeout(1800)]

PAGE = ROOT / "docs" / "quickstart-kind.md"
NOT_HERE = ("make ", "docker ", "kind ", "k3d ", "export NODE=")


@pytest.fixture
def shell(bare: Cluster, request: pytest.FixtureRequest) -> Iterator[Path]:
    # A namespace for each test, because the last one may still be terminating.
    with opened_shell(bare, NAMESPACES[request.function]) as folder:
        (folder / "manifests").unlink()
        (folder / "manifests").mkdir()
        for name in ("chart", "examples"):
            (folder / "manifests" / name).symlink_to(ROOT / "manifests" / name)
        quick = folder / "manifests" / "quickstart"
        quick.mkdir()
        for path in (ROOT / "manifests" / "quickstart").iterdir():
            text = path.read_text(encoding="utf-8")
            ours = f"image: {TRAINER}\n          imagePullPolicy: Never"
            (quick / path.name).write_text(text.replace("image: python:3.11-slim", ours))
        yield folder


def install(command: str) -> str:
    """The page's command with the images of the tests."""

    values = ["image.pullPolicy=Never", "sidecar.image.pullPolicy=Never"]
    for path, name in (("image", OPERATOR), ("sidecar.image", SIDECAR)):
        repository, _, tag = name.rpartition(":")
        values += [f"{path}.repository={repository}", f"{path}.tag={tag}"]
    return f"{command} --set {','.join(values)}"


def test_quick_start_works_as_documented(bare: Cluster, shell: Path):
    page = PAGE.read_text(encoding="utf-8")
    commands = [each for each in find_commands(page) if not each.startswith(NOT_HERE)]
    *prepare, helm, delete = commands
    assert [each.split()[1] for each in (*prepare, helm)] == ["label", "taint", "install"]
    for command in prepare:
        type_in(command.replace("$NODE", "node1"), shell, bare)
    type_in(install(helm), shell, bare)
    go_through(find_steps(page.replace("default/", "quick/")), shell, bare)
    type_in(delete, shell, bare)
    uninstall(bare)


def test_readme_commands_for_a_cluster_work(bare: Cluster, shell: Path):
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    [block] = re.findall(r"```sh\nhelm install.*?```", readme, re.DOTALL)
    for command in find_commands(block):
        typed = install(command) if command.startswith("helm ") else command
        type_in(typed.replace("REGISTRY/", "").replace("NODE", "node1"), shell, bare)
    assert "pytorch" in type_in("kubectl get dljobs -A", shell, bare)
    type_in("kubectl delete dljobs --all", shell, bare)
    uninstall(bare)


NAMESPACES = {
    test_quick_start_works_as_documented: "quick",
    test_readme_commands_for_a_cluster_work: "readme",
}
