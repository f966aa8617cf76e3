"""The operator reports an unreachable store on its own pod, where an administrator looks first."""

import socket
from pathlib import Path

import pytest

from tests.operator.stages import Stage
from tests.servers.binaries import find_ferretdb
from tests.servers.mongo import MongoServer

pytestmark = [pytest.mark.cluster, pytest.mark.processes]


def test_store_outage_is_reported_on_the_operators_pod(stage: Stage, tmp_path: Path):
    me = socket.gethostname()
    container = {"name": "operator", "image": "dljob-operator"}
    pod = {"metadata": {"name": me}, "spec": {"containers": [container]}}
    stage.api.post(stage.pod_path(), pod)

    def told(reason: str) -> str:
        return next((message for why, message in stage.events(me) if why == reason), "")

    with MongoServer(find_ferretdb(), tmp_path / "store") as store:
        store.kill()
        stage.start_operator(settings={"store": store.url("dljob")})
        away = stage.wait(lambda: told("StoreAway"))
        assert store.place in away
        assert "jobs continue" in away
        stage.submit("job")
        stage.wait_for_phase("job", "Completed")
        assert told("StoreIsBack") == ""
        store.start()
        stage.wait(lambda: told("StoreIsBack"))
