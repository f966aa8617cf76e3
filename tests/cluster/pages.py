"""Commands of a page, typed on a test's cluster, and the output that the page shows."""

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from tests.chart.helms import CHART, HOME
from tests.cluster.clusters import POOL_LABEL, Cluster
from tests.operator.stages import wait_until

ROOT = CHART.parents[1]
PATIENCE_SECONDS = 600.0
COMMAND_SECONDS = 900.0
READING = (
    *("kubectl get", "kubectl describe"),
    *("kubectl dljob why", "kubectl dljob gpu list", "kubectl dljob history"),
)
"""Commands that may be repeated until the output is as documented."""


class Step(NamedTuple):
    """A command and its output."""

    command: str
    prints: str


def find_steps(text: str) -> list[Step]:
    """The commands of all console blocks of a page."""
    found = []
    for block in re.findall(r"```console\n(.*?)```", text, re.DOTALL):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, printed = part.partition("\n")
            found.append(Step(command, printed))
    return found


def find_commands(text: str) -> list[str]:
    """The commands of all shell blocks of a page, without comments."""
    lines = "".join(re.findall(r"```sh\n(.*?)```", text, re.DOTALL)).replace("\\\n", "")
    return [command for line in lines.splitlines() if (command := line.partition(" #")[0].strip())]


OF_ONE_RUN = re.compile(
    r"\b\d+-\d+ \d+:\d+:\d+"  # when
    r"|\b\d[\d.smhd-]*[smhd]\b"  # how long
    r"|\b\d[\d.]*%"
    r"|\b\d[\d.]* (?=it/s|s\b|min\b|h\b|times\b)"
    r"|…"
)


def pattern(text: str) -> str:
    """Times, speeds, shares and column widths differ in each run; … stands for anything."""
    plain = " ".join(text.split())
    ends = [match.end() for match in OF_ONE_RUN.finditer(plain)]
    begins = [match.start() for match in OF_ONE_RUN.finditer(plain)]
    parts = [plain[end:begin] for end, begin in zip([0, *ends], [*begins, None], strict=True)]
    return ".*".join(map(re.escape, parts))


def looks_like(printed: str, expected: str) -> bool:
    return re.fullmatch(pattern(expected), " ".join(printed.split())) is not None


@contextmanager
def opened_shell(cluster: Cluster, namespace: str) -> Iterator[Path]:
    """A folder to type in and a namespace, on a cluster without DLJob and with an empty pool."""
    cluster.kubectl("create", "namespace", namespace)
    delete = ("delete", "namespace", HOME, "--timeout=60s")
    wait_until(
        lambda: "NotFound" in cluster.kubectl.try_to(*delete).err,
        cluster.describe_home,
        patience=300.0,
    )
    for node in cluster.nodes.nodes:
        cluster.kubectl("label", "node", node.name, "--overwrite", f"{POOL_LABEL}-")
        cluster.kubectl.try_to("taint", "node", node.name, f"{POOL_LABEL}-")
    folder = cluster.folder / namespace
    folder.mkdir()
    (folder / "manifests").symlink_to(ROOT / "manifests")
    kubeconfig = folder / "kubeconfig"
    kubeconfig.write_bytes(cluster.plane.admin.read_bytes())
    select = ("config", "set-context", "--current", f"--namespace={namespace}")
    cluster.plane.kubectl_as(kubeconfig)(*select)
    yield folder
    cluster.kubectl.try_to("delete", "dljobs", "--all", "-n", namespace, "--timeout=60s")
    cluster.kubectl.try_to("delete", "namespace", namespace, "--wait=false")


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


def go_through(steps: list[Step], folder: Path, cluster: Cluster) -> None:
    """Type all commands, and compare the output with the page."""
    for step in steps:
        end = time.monotonic() + PATIENCE_SECONDS
        while not looks_like(printed := type_in(step.command, folder, cluster), step.prints):
            is_over = time.monotonic() > end or not step.command.startswith(READING)
            assert not is_over, f"$ {step.command}\n{printed}\n--- but the page has\n{step.prints}"
            time.sleep(0.5)
