"""``dljob up`` on a machine whose cloud announces its end: the job saves itself, leaves, and comes back."""

import shutil
import tempfile
import time
from pathlib import Path

import pytest

from tests.cloud.metadata import played_cloud, spot
from tests.local.ups import going, replay

pytestmark = pytest.mark.processes

WHY = "the cloud ends this machine at "


@pytest.fixture
def root():
    """A state folder whose path is short enough for its sockets to be in it."""
    folder = Path(tempfile.mkdtemp(prefix="dljob-test-"))
    yield folder
    shutil.rmtree(folder)


@pytest.mark.story
def test_a_job_saves_itself_and_leaves_until_the_notice_is_withdrawn(root, monkeypatch):
    with played_cloud() as cloud:
        monkeypatch.setenv("DLJOB_CLOUD_PROVIDER", "aws")
        monkeypatch.setenv("DLJOB_CLOUD_ADDRESS", cloud.address)
        with going(root / "state", "--virtual-gpus", 2) as up:
            document = replay("net", root, iterations=10**6, faster=20.0)
            document["spec"]["gpus"] = {"options": [2]}
            assert up.submit(document).status == 0
            up.until_phase("net", "Running")
            up.until(lambda: progress(up) > 0)
            before = progress(up)

            cloud.spot = spot(time.time() + 120)
            up.until_phase("net", "Queued")
            saved = int((root / "checkpoints" / "net" / "iteration").read_text())
            assert saved >= before
            up.until(lambda: WHY in up("why", "net").stdout)
            assert "(spot-terminate)" in up("why", "net").stdout
            reasons = {gpu["reason"] for gpu in up.backend.list_nodes()[0]["gpus"]}
            assert len(reasons) == 1
            assert reasons.pop().startswith(WHY)
            assert up.backend.get_job("net")["status"].get("failures", 0) == 0

            # The next controller of this machine starts no job before it has asked.
            assert up.end() == 0
        with going(root / "state", "--virtual-gpus", 2) as up:
            up.until(lambda: bool(up.backend.list_nodes()))
            assert up.backend.get_job("net")["status"]["phase"] == "Queued"
            cloud.spot = None
            up.until_phase("net", "Running")
            up.until(lambda: progress(up) > saved)
            assert up("cancel", "--wait", "net").status == 0
            assert up.end() == 0


def progress(up) -> int:
    return int(up.backend.get_job("net")["status"].get("progress", {}).get("iteration", 0))
