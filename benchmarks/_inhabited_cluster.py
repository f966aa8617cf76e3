"""A control plane with the page's server, which the benchmark of the page fills with jobs."""

import contextlib
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from _progress import ROOT

from addons.web.tests.portal.houses import (
    HOME,
    READ_JOBS,
    READ_NODES,
    House,
    grant,
    make_token,
    serve,
)
from tests.operator.conftest import install_crd
from tests.operator.manifests import make_manifest, path_of
from tests.servers.binaries import find_all
from tests.servers.controlplane import PROGRAMS, ControlPlane, Wishes
from tests.servers.namespaces import wait_for_account
from tests.servers.nodes import add_nodes, make_node
from tests.servers.processes import Guard

Json = dict[str, Any]

VIEWER = "viewer"
"""A user who may list all jobs and all nodes."""
TEAM = "training"
"""The namespace of all jobs."""
ON_A_NODE = 8
GPUS_A_JOB = 4
ITERATIONS = 100_000
SPEED = 20.0


@contextlib.contextmanager
def inhabited(folder: Path, *, controllers: bool, store: Path | None = None) -> Iterator[House]:
    """
    Start it, without ``controllers`` where nothing but the page's server reads it; it ends with the block.

    The page's server reads the record from the operator's ``store``, or else from the API server.
    """
    scheduler: Json | None = {} if controllers else None
    wishes = Wishes(controllers=controllers, scheduler=scheduler)
    programs = find_all(*PROGRAMS)
    with (
        ControlPlane(folder / "plane", wishes, programs=programs) as plane,
        plane.api() as api,
        Guard() as guard,
    ):
        install_crd(plane)
        for name in (HOME, TEAM):
            api.post("/api/v1/namespaces", {"metadata": {"name": name}})
        if controllers:
            wait_for_account(api, TEAM)
        plane.kubectl("apply", "--server-side", "-k", ROOT / "manifests" / "web")
        api.post(f"/api/v1/namespaces/{HOME}/serviceaccounts", {"metadata": {"name": VIEWER}})
        grant(api, "ClusterRole", "", VIEWER, READ_JOBS + READ_NODES)
        kubeconfig = plane.kubeconfig_for_service_account(HOME, "dljob-web")
        words = () if store is None else ("--store", str(store))
        address, server = serve(guard, kubeconfig, folder, *words)
        yield House(plane, address, {VIEWER: make_token(api, VIEWER)}, server, api)


def fill(house: House, *, gpus: int, waiting: int) -> int:
    """
    Create nodes with this number of GPUs, jobs that have all of them, and jobs that wait; return the number of jobs.

    No operator runs: each job has the status that one gives it.
    """
    labels = {
        "dljob.io/pool": "",
        "dljob.io/gpu-count": str(ON_A_NODE),
        "dljob.io/gpu-type": "A100",
    }
    nodes = gpus // ON_A_NODE
    add_nodes(house.api, (make_node(f"node-{number}", labels=labels) for number in range(nodes)))
    running = nodes * ON_A_NODE // GPUS_A_JOB
    for number in range(running + waiting):
        name = f"job-{number}"
        document = make_manifest(
            name, gpus={"options": [1, 2, 4, 8]}, training={"iterations": ITERATIONS}
        )
        house.api.post(path_of(TEAM), document)
        status = _running(number) if number < running else _waiting(number - running)
        house.api.merge(path_of(TEAM, name, "status"), {"status": status})
    return running + waiting


def _running(number: int) -> Json:
    node, first = divmod(number * GPUS_A_JOB, ON_A_NODE)
    held = {"name": f"node-{node}", "gpuIds": list(range(first, first + GPUS_A_JOB))}
    at = _write_time(100.0)
    return {
        "phase": "Running",
        "submittedAt": at,
        "startedAt": at,
        "allocation": {"gpus": GPUS_A_JOB, "gpuType": "A100", "decidedAt": at, "nodes": [held]},
        "progress": {
            "iteration": number % 50 * ITERATIONS // 50,
            "iterationsTotal": ITERATIONS,
            "iterationsPerSecond": SPEED,
        },
    }


def _waiting(ahead: int) -> Json:
    return {"phase": "Queued", "submittedAt": _write_time(50.0), "queue": {"ahead": ahead}}


def _write_time(ago_s: float) -> str:
    at = datetime.now(UTC) - timedelta(seconds=ago_s)
    return at.strftime("%Y-%m-%dT%H:%M:%SZ")
