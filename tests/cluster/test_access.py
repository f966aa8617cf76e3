"""
By what containers see GPUs, with devices that are virtual: NVIDIA's own NRI plugin and a CDI file made by hand.

The plugin is looked for on the path as ``nvidia-nri``, and the nodes' containerd has to be of version 2.
"""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.cluster.clusters import install, values
from tests.cluster.jobs import as_text, replay, trainer_of
from tests.cluster.looking import View
from tests.servers.processes import Guard, Server

pytestmark = [pytest.mark.nodes, pytest.mark.slow]

PLUGIN = "nvidia-nri"
CDI = {
    "cdiVersion": "0.5.0",
    "kind": "nvidia.com/gpu",
    "devices": [
        {
            "name": "all",
            "containerEdits": {
                "deviceNodes": [
                    {"path": "/dev/nvidia0", "type": "c", "major": 1, "minor": 3},
                    {"path": "/dev/nvidiactl", "type": "c", "major": 1, "minor": 3},
                ]
            },
        }
    ],
}


@pytest.fixture
def by_cdi(view: View) -> Iterator[View]:
    """A cluster whose containers are given GPUs by CDI."""
    plugin = shutil.which(PLUGIN)
    told = subprocess.run(["containerd", "--version"], capture_output=True, text=True, check=True)
    version = re.search(r" v?(\d+)\.", told.stdout)
    if plugin is None or version is None or int(version[1]) < 2:
        pytest.skip("needs containerd 2 and NVIDIA's NRI plugin on the path")
    usual = dict(values()["settings"])
    pods = {"runtimeClass": "", "virtualGpus": False, "gpuAccess": "cdi"}
    with Guard() as guard:
        for node in view.cluster.nodes.nodes:
            (node.folder / "cdi" / "nvidia.json").write_text(json.dumps(CDI))
            log = node.folder / "nri.log"
            server = Server(
                [plugin, str(node.folder / "nri.sock")],
                guard=guard,
                log=log,
                is_ready=partial(_is_registered, log),
            )
            server.start()
        install(view.cluster, settings={**usual, "pods": pods})
        yield view
        install(view.cluster)


def _is_registered(log: Path) -> bool:
    return log.exists() and "Started plugin" in log.read_text(encoding="utf-8")


def test_the_trainer_alone_sees_the_devices_of_a_cdi_file(by_cdi: View, saved: Path):
    view = by_cdi
    view.cluster.give_gpus(node1=1)
    manifest = replay("job", [1], saved)
    trainer = trainer_of(manifest)
    beside = {name: trainer[name] for name in ("image", "imagePullPolicy")}
    beside |= {"name": "beside", "command": ["sleep", "3600"]}
    manifest["spec"]["template"]["spec"]["containers"].append(beside)
    view.kubectl("apply", "-f", "-", stdin=as_text(manifest))
    pod = view.wait(
        lambda: next((each for each in view.pods("job") if each.phase == "Running"), None),
        what="the pod",
    )
    assert "nvidia0" in view.kubectl("exec", pod.name, "-c", "trainer", "--", "ls", "/dev")
    assert "nvidia" not in view.kubectl("exec", pod.name, "-c", "beside", "--", "ls", "/dev")
