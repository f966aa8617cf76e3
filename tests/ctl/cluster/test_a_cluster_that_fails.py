"""A cluster that does not know DLJob yet, is away for a while, or refuses what we let pass."""

import asyncio
import json
import signal
import subprocess
import sys

import pytest

from dljob.cli.output.messages import INTERRUPTED
from dljob.client.cluster.asking import Asker
from dljob.client.cluster.connecting import connect
from tests.ctl.cluster.playing import in_namespace, path_of
from tests.local.stages import job_document
from tests.operator.stages import install, wait_until
from tests.servers.api import Refused
from tests.servers.controlplane import ControlPlane, Wishes

pytestmark = [pytest.mark.cluster]

NAMESPACE = "default"


@pytest.fixture(scope="module")
def plane(tmp_path_factory):
    """An API server alone, without scheduler and operator."""
    wishes = Wishes(controllers=False, scheduler=None)
    with ControlPlane(tmp_path_factory.mktemp("plane"), wishes) as plane:
        yield plane


@pytest.fixture
def ada(plane, as_user):
    return as_user(in_namespace(plane.admin, NAMESPACE))


def test_cluster_without_dljob_says_how_to_install(plane, ada):
    for words in (["get"], ["why", "a"], ["submit", ada.file(job_document("a"))]):
        result = ada(*words)
        assert (result.status, result.stdout) == (1, "")
        [line] = result.stderr.splitlines()
        assert line.endswith(
            "the kind DLJob; install DLJob there: kubectl apply -k manifests/install"
        )


@pytest.fixture
def installed(plane):
    with plane.api() as api:
        install(api)
        yield api


def test_interrupt_at_any_moment_only_interrupts(plane):
    asker = Asker(connect(str(plane.admin)).access)

    async def be_interrupted(_=None):
        # As a signal does before asyncio can know that it was one.
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(60)

    async def flow():
        yield "first"
        await be_interrupted()

    with pytest.raises(KeyboardInterrupt):
        asker.ask(be_interrupted)
    news = asker.iterate(lambda _: flow())
    assert next(news) == "first"
    with pytest.raises(KeyboardInterrupt):
        next(news)
    asker.close()


def test_watching_outlives_the_api_server(plane, installed, ada):
    assert ada("submit", ada.file(job_document("stays"))).status == 0
    script = "from dljob.cli.main import main; main()"
    with subprocess.Popen(
        [sys.executable, "-c", script, "get", "-w"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=ada.environment(),
    ) as process:
        try:
            assert process.stdout is not None
            lines = iter(process.stdout.readline, b"")
            assert next(lines).split()[0] == b"NAME"
            assert next(lines).split()[:2] == [b"stays", b"Submitted"]
            plane.api_server.stop()
            away = ada("get")
            assert away.status == 1
            assert away.stderr.startswith("dljob: the API server at https://127.0.0.1:")
            assert "check that it can be reached from here" in away.stderr
            plane.api_server.start()
            change = {"status": {"phase": "Queued", "message": "waits"}}
            with plane.api() as api:
                wait_until(lambda: is_merged(api, path_of(NAMESPACE, "stays", "status"), change))
            assert next(lines).split()[:2] == [b"stays", b"Queued"]
            process.send_signal(signal.SIGINT)
            assert process.stderr is not None
            assert process.wait(240.0) == INTERRUPTED, process.stderr.read().decode()
            assert process.stderr.read() == b"\n", "nothing but the end of the line of ^C"
        finally:
            process.kill()
    assert ada("cancel", "stays").status == 0


def test_listing_jobs_loads_nothing_of_the_brain(plane, installed, ada):
    script = (
        "import json, sys; from dljob.cli.main import run; status = run(['get']);"
        "print(json.dumps([status, sorted(m.split('.')[0] for m in sys.modules)]))"
    )
    ran = subprocess.run(
        [sys.executable, "-c", script],
        env=ada.environment(),
        capture_output=True,
        text=True,
        check=True,
        timeout=240.0,
    )
    status, modules = json.loads(ran.stdout.splitlines()[-1])
    assert status == 0
    assert not {"kopf", "matplotlib", "numpy", "pymongo", "rich", "scipy"} & set(modules)


def is_merged(api, path, change):
    """A server that starts serves custom resources a moment after it is said to be ready."""
    try:
        api.merge(path, change)
    except Refused:
        return False
    return True
