"""A cluster of real nodes for all tests here, and a namespace and an empty pool for each."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.clusters import Cluster, install, is_installed, opened, uninstall
from tests.cluster.looking import View
from tests.servers.binaries import entered
from tests.servers.namespaces import make_namespace, remove_namespace


@pytest.fixture(scope="package")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """The cluster, with or without DLJob. The tests run on its network until the last one has ended."""
    with entered(opened(tmp_path_factory.mktemp("nodes"))) as cluster:
        yield cluster


@pytest.fixture
def bare(nodes: Cluster) -> Cluster:
    """The cluster without DLJob."""
    if is_installed(nodes):
        uninstall(nodes)
    return nodes


@pytest.fixture
def cluster(nodes: Cluster) -> Cluster:
    """The cluster with DLJob, which stays for the tests that follow."""
    if not is_installed(nodes):
        install(nodes)
    return nodes


@pytest.fixture
def view(cluster: Cluster) -> Iterator[View]:
    """A namespace of one test; at its end no job is left and the pool is empty."""
    with cluster.plane.api() as api:
        name = make_namespace(api)
        seen = View(cluster, api, name)
        yield seen
        seen.kubectl("delete", "dljobs", "--all", "--wait=false")
        seen.wait(
            lambda: not seen.find("dljobs") and not seen.find("pods"),
            what="the end of all jobs and pods",
        )
        cluster.give_gpus()
        remove_namespace(api, name)


@pytest.fixture
def saved(view: View) -> Path:
    """The checkpoint folder of a test's jobs, on all nodes."""
    folder = view.cluster.folder / view.namespace
    folder.mkdir()
    return folder
