"""A cluster of real nodes that have the images of a release, the one of the examples too."""

from collections.abc import Iterator

import pytest

from tests.cluster.clusters import Cluster, install, opened
from tests.cluster.conftest import view
from tests.servers.binaries import entered
from tests.servers.images import Images

__all__ = ["view"]


@pytest.fixture(scope="package")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("examples")
    with entered(opened(folder, Images.in_cache().examples_built)) as cluster:
        install(cluster)
        yield cluster
