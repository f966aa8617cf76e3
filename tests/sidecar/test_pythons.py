"""The SideCar runs on every Python that an image may have, with nothing but tornado beside it."""

import sys
from pathlib import Path

import pytest
import tornado

from dlwire.messages import Phase
from tests.sidecar.drivers import wait_until
from tests.sidecar.interpreters import VERSIONS, find_python
from tests.sidecar.sidecars import SideCar

pytestmark = pytest.mark.processes


@pytest.mark.slow
@pytest.mark.parametrize("version", VERSIONS)
def test_a_training_is_started_reshaped_and_stopped_on_every_python(tmp_path, token, version):
    python = find_python(version)
    libraries = tmp_path / "libraries"
    libraries.mkdir()
    (libraries / "tornado").symlink_to(Path(tornado.__file__).parent)
    show = "import os, sys; print(sys.version_info[:2], os.environ['CUDA_VISIBLE_DEVICES'])"
    command = [sys.executable, "-S", "-c", f"{show}; import time; time.sleep(1000)", token]
    sidecar = SideCar(
        tmp_path,
        token,
        *command,
        python=(python, "-S", "-W", "error"),
        path=(str(libraries),),
    )
    try:
        sidecar.wait_ready()
        sidecar.run(1, "0", "1")
        sidecar.run(2, "1")
        state = sidecar.wait_for(lambda s: s.phase is Phase.RUNNING and s.held_generation == 2)
        assert state.held == ("1",)
        wait_until(lambda: ") 1\n" in sidecar.told(), what="the training")
        sidecar.stop(3, leave=True)
        assert sidecar.wait_ended() == 0
        assert sidecar.trainings() == []
        assert "Warning" not in sidecar.told()
        assert "Traceback" not in sidecar.told()
    finally:
        sidecar.close()
