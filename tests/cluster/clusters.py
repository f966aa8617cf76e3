"""A cluster of two real nodes with an operator, installed as by users."""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.chart.helms import CHART, HOME
from tests.cluster.jobs import GPU_TYPE, as_text, replay
from tests.operator.stages import wait_until
from tests.servers.api import Json
from tests.servers.binaries import HELM, find_all
from tests.servers.controlplane import PROGRAMS, ControlPlane, Wishes
from tests.servers.images import OPERATOR, SIDECAR, Images
from tests.servers.kubectl import Kubectl, KubectlFailed
from tests.servers.packages import ensure_packages
from tests.servers.realnodes import HOST, LOST_SECONDS, RealNodes, make_nodes, open_room
from tests.servers.rooms import Room
from tests.servers.stocks import Stock

HELM_SECONDS = 600.0
NODES = 2
RELEASE = "dljob"
POOL_LABEL = "dljob.io/pool"
"""Also the taint of these nodes."""
COUNT_LABEL = "nvidia.com/gpu.count"
PRODUCT_LABEL = "nvidia.com/gpu.product"


@dataclass(frozen=True)
class Cluster:
    """The cluster of a test, and the tools for it."""

    plane: ControlPlane
    nodes: RealNodes
    helm_program: Path
    folder: Path
    """A folder that all nodes share, as from a file server."""

    @property
    def kubectl(self) -> Kubectl:
        return self.plane.kubectl

    def give_gpus(self, **gpus: int) -> None:
        """Label the nodes like GPU feature discovery; a node without GPUs leaves the pool."""
        for node in self.nodes.nodes:
            if count := gpus.get(node.name, 0):
                found = (f"{COUNT_LABEL}={count}", f"{PRODUCT_LABEL}={GPU_TYPE}", f"{POOL_LABEL}=")
                self.kubectl("label", "node", node.name, "--overwrite", *found)
                taint = f"{POOL_LABEL}=:NoSchedule"
                self.kubectl("taint", "node", node.name, "--overwrite", taint)
            else:
                self.kubectl("label", "node", node.name, f"{POOL_LABEL}-")
                self.kubectl.try_to("taint", "node", node.name, f"{POOL_LABEL}-")

    def helm(self, *words: str | Path) -> str:
        helm = Kubectl(self.helm_program, self.plane.admin, seconds=HELM_SECONDS)
        said = helm.try_to(*words)
        assert said.code == 0, f"helm {words}: {said.err.strip()}\n{self.describe_home()}"
        return said.out

    def ask(self, *words: str) -> Json:
        found: Json = json.loads(self.kubectl("get", *words, "-o", "json"))
        return found

    def describe_home(self) -> str:
        """The state and the logs of the operators."""
        which = ("-n", HOME, "-l", "app.kubernetes.io/component=operator")
        asked = (
            ("get", "pods", *which, "-o", "wide"),
            ("get", "events", "-n", HOME),
            ("logs", *which, "--tail=40", "--prefix"),
        )
        return "\n".join(self.kubectl.try_to(*words).out for words in asked)


def values(**others: Any) -> Mapping[str, Any]:
    """The values of the chart for local images and virtual GPUs."""

    def image(name: str) -> Json:
        repository, _, tag = name.rpartition(":")
        return {"repository": repository, "tag": tag, "pullPolicy": "Never"}

    return {
        "image": image(OPERATOR),
        "sidecar": {"image": image(SIDECAR)},
        "settings": {
            "pods": {"runtimeClass": "", "virtualGpus": True, "hostPorts": "20000-29999"},
            # Tests wait for progress.
            "publishing": {"seconds": 2},
        },
        # All nodes belong to the pool.
        "tolerations": [{"operator": "Exists"}],
        **others,
    }


def install(cluster: Cluster, **others: Any) -> None:
    file = cluster.folder / "values.yaml"
    file.write_text(yaml.safe_dump(dict(values(**others))))
    cluster.helm(
        *("upgrade", "--install", RELEASE, CHART, "--namespace", HOME, "--create-namespace"),
        *("--values", file, "--wait", "--timeout=5m"),
    )
    wait_until(lambda: is_taken(cluster), cluster.describe_home)


def uninstall(cluster: Cluster) -> None:
    cluster.helm("uninstall", RELEASE, "--namespace", HOME, "--wait", "--timeout=5m")


def is_installed(cluster: Cluster) -> bool:
    return RELEASE in cluster.helm("list", "--namespace", HOME, "--short").split()


def is_taken(cluster: Cluster) -> bool:
    """Whether the API server accepts jobs; on a busy machine its policies know the definition after ``--wait``."""
    words = ("create", "--namespace=default", "--dry-run=server", "--filename=-")
    said = cluster.kubectl.try_to(*words, stdin=as_text(replay("tried", [1], cluster.folder)))
    if said.code != 0 and "There can be a delay" not in said.err:
        raise KubectlFailed(said.err)
    return said.code == 0


def have_all(room: Room) -> AbstractContextManager[Stock]:
    return Images.in_cache().all_built(room)


@contextmanager
def opened(
    folder: Path, images_in: Callable[[Room], AbstractContextManager[Stock]] = have_all
) -> Iterator[Cluster]:
    """
    Start everything, and take it down again; raises ``Unavailable`` where that is impossible.

    ``images_in`` gives the images that the nodes have at first.
    """
    ensure_packages()
    programs = find_all(*PROGRAMS, HELM)
    wishes = Wishes(host=HOST, lost_seconds=LOST_SECONDS)
    with ExitStack() as stack:
        # Files and control groups can be removed once no process is in the room.
        cleared = stack.enter_context(ExitStack())
        room = stack.enter_context(open_room(NODES))
        building = stack.enter_context(ExitStack())
        # Before this process enters the network of the room, where it can fetch nothing.
        images = building.enter_context(images_in(room))
        stack.enter_context(room.entered())
        plane = stack.enter_context(ControlPlane(folder / "plane", wishes, programs=programs))
        nodes = make_nodes(NODES, room=room, plane=plane, folder=folder)
        cleared.callback(nodes.clear)
        nodes.start(images)
        building.close()
        shared = folder / "shared"
        shared.mkdir()
        yield Cluster(plane, nodes, programs["helm"], shared)
