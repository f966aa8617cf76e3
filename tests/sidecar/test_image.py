"""``Dockerfile.sidecar``: the image brings the SideCar into any other one, and nothing else."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from dlwire.messages import Phase
from tests.sidecar.archives import build
from tests.sidecar.drivers import ROOT, find_processes, wait_until
from tests.sidecar.engines import SIDECAR, Seen, find_engine, find_tools
from tests.sidecar.sidecars import SideCar

pytestmark = [pytest.mark.processes, pytest.mark.slow]

STRANGER = 54321
CANNOT_BE_FOUND = 127
SYSTEM = [name for name in ("/bin", "/lib", "/lib64", "/usr") if Path(name).exists()]


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    """An engine that has built the image, from nothing but the files that it names."""
    folder = tmp_path_factory.mktemp("engine")
    found = find_engine(folder, SIDECAR)
    base = folder / "base"
    (base / "bin").mkdir(parents=True)
    shutil.copy(find_tools(), base / "bin" / "busybox")
    context = folder / "context"
    for name in ("Dockerfile.sidecar", "LICENSE", "NOTICE", "sidecar/sidecar-start"):
        (context / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, context / name)
    (context / "dist").mkdir()
    assert build(context / "dist" / "dljob-sidecar.pyz").returncode == 0
    try:
        found.build(context, base)
        yield found
    finally:
        found.close()


@pytest.fixture
def folder():
    """A folder that the users of containers may enter, which is not true of those of pytest."""
    made = Path(tempfile.mkdtemp(prefix="dljob-", dir="/tmp"))
    made.chmod(0o777)
    (made / "volume").mkdir()
    (made / "volume").chmod(0o777)
    yield made
    shutil.rmtree(made)


@pytest.fixture
def volume(engine, folder):
    """The shared volume, after the init container has done what its image says."""
    user, command, *_ = engine.describe()
    mounts = {str(folder / "volume"): Seen("/dljob", writable=True)}
    init = engine.prepare(int(user.partition(":")[0]), mounts)
    # Twice, because the containers of a pod may restart over the same volume.
    for _ in range(2):
        ran = subprocess.run([*init, *command], capture_output=True, text=True, check=False)
        assert (ran.returncode, ran.stderr) == (0, "")
    return folder / "volume"


def test_the_init_container_is_nobody_and_leaves_two_files_for_all_to_read(engine, volume):
    user, command, *_ = engine.describe()
    assert user == "65532:65532"
    assert command[-1] == "/dljob"
    modes = {file.name: file.stat().st_mode & 0o777 for file in volume.iterdir()}
    assert modes == {"dljob-sidecar.pyz": 0o444, "sidecar-start": 0o555}
    assert {file.stat().st_uid for file in volume.iterdir()} == {65532}


def test_the_sidecar_trains_as_the_first_process_of_another_image(engine, folder, volume, token):
    tell = "import os, sys; print(os.path.realpath(sys.executable)); print(sys.base_prefix)"
    told = subprocess.run([sys.executable, "-c", tell], capture_output=True, text=True, check=True)
    executable, prefix = (Path(line).resolve() for line in told.stdout.split("\n")[:2])
    python = str("/opt/python" / executable.relative_to(prefix))
    image = {name: Seen(name) for name in SYSTEM}
    image[str(prefix)] = Seen("/opt/python")
    mounts = {**image, str(volume): Seen("/dljob"), str(folder): Seen(str(folder), writable=True)}
    library = "LD_LIBRARY_PATH=/opt/python/lib"
    start = ("/usr/bin/env", library, "/dljob/sidecar-start", "--python", python)
    tell = "import os, time; print('user', os.getuid(), 'child of', os.getppid(), flush=True)"
    training = (python, "-c", f"{tell}; print('step 7', flush=True); time.sleep(1000)", token)
    options = ("--progress-log", r"step (?P<iteration>\d+)")
    container = engine.prepare(STRANGER, mounts, bare=True)
    sidecar = SideCar(
        folder, token, *training, python=(*container, *start), program=(), options=options
    )
    try:
        assert sidecar.wait_ready().released
        sidecar.run(1, "0")
        sidecar.wait_for(lambda s: s.phase is Phase.RUNNING)
        wait_until(lambda: sidecar.state().progress.iteration == 7, what="progress")
        assert f"user {STRANGER} child of 1\n" in sidecar.told()
        sidecar.run(2, "1")
        sidecar.wait_for(lambda s: s.phase is Phase.RUNNING and s.held_generation == 2)
        sidecar.stop(3, leave=True)
        assert sidecar.wait_ended() == 0
        assert find_processes(token) == []
        assert "Traceback" not in sidecar.told()
    finally:
        sidecar.close()


def test_an_image_without_python_is_told_what_it_lacks(engine, volume):
    mounts = {str(find_tools()): Seen("/bin/sh"), str(volume): Seen("/dljob")}
    container = engine.prepare(STRANGER, mounts, bare=True)
    command = [*container, "/dljob/sidecar-start", "run", "--", "true"]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout) == (CANNOT_BE_FOUND, "")
    assert (
        "InterpreterMissing: no Python 3.9 or newer was found (no python3, no python," in ran.stderr
    )
