"""The session of docs/walkthrough.md, typed exactly as printed, on two real nodes."""

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml

from tests.chart.helms import CHART, HOME
from tests.cluster.clusters import RELEASE, Cluster, values
from tests.cluster.jobs import as_text, replay
from tests.operator.stages import wait_until

ROOT = CHART.parents[1]
PAGE = ROOT / "docs" / "walkthrough.md"
NAMESPACE = "team-a"
PATIENCE_SECONDS = 600.0
COMMAND_SECONDS = 900.0
READING = ("kubectl get", "kubectl dljob why", "kubectl dljob gpu list", "kubectl dljob history")
"""These commands may be repeated until the output is as documented, because it takes a moment."""


class Step(NamedTuple):
    """A command, and what it prints."""

    command: str
    prints: str


def steps() -> list[Step]:
    found = []
    for block in re.findall(r"```console\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, printed = part.partition("\n")
            found.append(Step(command, printed))
    return found


OF_ONE_RUN = re.compile(
    r"\b\d+-\d+ \d+:\d+:\d+"  # when
    r"|\b\d[\d.smhd-]*[smhd]\b"  # how long
    r"|\b\d[\d.]*%"
    r"|\b\d[\d.]* (?=it/s|s\b|min\b|h\b|times\b)"
    r"|…"
)


def pattern(text: str) -> str:
    """Times, speeds, shares and the width of columns are those of one run; … stands for anything."""
    plain = " ".join(text.split())
    ends = [match.end() for match in OF_ONE_RUN.finditer(plain)]
    begins = [match.start() for match in OF_ONE_RUN.finditer(plain)]
    parts = [plain[end:begin] for end, begin in zip([0, *ends], [*begins, None], strict=True)]
    return ".*".join(map(re.escape, parts))


def looks_like(printed: str, expected: str) -> bool:
    return re.fullmatch(pattern(expected), " ".join(printed.split())) is not None


@pytest.fixture
def shell(nodes: Cluster) -> Iterator[Path]:
    """A folder with the files that the page speaks of, on a cluster without DLJob."""
    nodes.kubectl("create", "namespace", NAMESPACE)
    delete = ("delete", "namespace", HOME, "--timeout=60s")
    wait_until(
        lambda: "NotFound" in nodes.kubectl.try_to(*delete).err, nodes.describe_home, patience=300.0
    )
    for node in nodes.nodes.nodes:
        nodes.kubectl("label", "node", node.name, "--overwrite", "dljob.io/pool-")
        nodes.kubectl.try_to("taint", "node", node.name, "dljob.io/pool-")
        labels = ("nvidia.com/gpu.count=4", "nvidia.com/gpu.product=A100")
        nodes.kubectl("label", "node", node.name, "--overwrite", *labels)
    folder = nodes.folder / "walkthrough"
    folder.mkdir()
    (folder / "manifests").symlink_to(ROOT / "manifests")
    (folder / "values.yaml").write_text(yaml.safe_dump(dict(values())))
    for name, options in (("resnet", [2, 4, 8]), ("wide", [8])):
        job = replay(name, options, folder, framework="pytorch", processes="perGpu")
        (folder / f"{name}.yaml").write_text(as_text(job))
    kubeconfig = folder / "kubeconfig"
    kubeconfig.write_bytes(nodes.plane.admin.read_bytes())
    nodes.plane.kubectl_as(kubeconfig)(
        "config", "set-context", "--current", f"--namespace={NAMESPACE}"
    )
    yield folder
    nodes.kubectl.try_to("delete", "dljobs", "--all", "-n", NAMESPACE, "--timeout=60s")
    nodes.kubectl.try_to("delete", "namespace", NAMESPACE, "--wait=false")


def type_in(command: str, folder: Path, cluster: Cluster) -> str:
    kubectl = Path(cluster.kubectl.command()[0])
    programs = (Path(sys.executable).parent, cluster.helm_program.parent, kubectl.parent)
    path = os.pathsep.join([*map(str, programs), os.environ["PATH"]])
    environment = cluster.kubectl.environment(
        {"KUBECONFIG": str(folder / "kubeconfig"), "PATH": path, "NO_COLOR": "1"}
    )
    ran = subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=COMMAND_SECONDS,
    )
    assert ran.returncode == 0, f"$ {command}\n{ran.stdout}{ran.stderr}\n{cluster.describe_home()}"
    return ran.stdout


@pytest.mark.nodes
def test_the_session_of_the_page_looks_as_it_says(nodes: Cluster, shell: Path):
    for step in steps():
        end = time.monotonic() + PATIENCE_SECONDS
        while not looks_like(printed := type_in(step.command, shell, nodes), step.prints):
            is_over = time.monotonic() > end or not step.command.startswith(READING)
            assert not is_over, f"$ {step.command}\n{printed}\n--- but the page has\n{step.prints}"
            time.sleep(0.5)
    assert nodes.helm("list", "-n", HOME, "-q").split() == [], RELEASE
