"""``dist/dljob-sidecar.pyz``: one file that any image can run, and that is the same everywhere."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from importlib import metadata
from pathlib import Path

import pytest

from dljob_sidecar import EXIT_UNAVAILABLE, __version__
from dljob_wire.messages import Phase
from tests.sidecar.archives import build
from tests.sidecar.drivers import HERE, ROOT, find_processes, wait_until
from tests.sidecar.interpreters import TOO_OLD, VERSIONS, find_python, has_python
from tests.sidecar.sidecars import SideCar
from tests.sidecar.strangers import STRANGER

pytestmark = pytest.mark.processes

MOST_BYTES = 3_000_000
THIS = f"{sys.version_info[0]}.{sys.version_info[1]}"
TELL = "import sys; print(sys.version_info[:2])"
TRAINING = """
import os, sys, time
print("user", os.getuid(), "has", os.environ["CUDA_VISIBLE_DEVICES"], "wave" in sys.modules)
print("step 7", flush=True)
time.sleep(1000)
"""


def copy_sources(folder):
    """Copy what the archive is made of, as a fresh checkout would have it."""
    for name in ("LICENSE", "NOTICE", "requirements.lock"):
        shutil.copyfile(ROOT / name, folder / name)
    hide = shutil.ignore_patterns("__pycache__")
    for name in ("scripts", "sidecar"):
        shutil.copytree(ROOT / name, folder / name, ignore=hide, copy_function=shutil.copyfile)
    return folder


def run_archive(python, archive, *arguments):
    return subprocess.run(
        [python, "-I", "-S", "-W", "error", str(archive), *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )


@pytest.fixture(scope="module")
def archive(tmp_path_factory):
    target = tmp_path_factory.mktemp("archive") / "dljob-sidecar.pyz"
    built = build(target)
    assert built.returncode == 0, built.stderr
    return target


# --- what it is -----------------------------------------------------------------------------


def test_every_machine_builds_the_same_bytes(archive, tmp_path):
    root = tmp_path / "another" / "checkout"
    root.mkdir(parents=True)
    target = tmp_path / "other.pyz"
    packages = str(metadata.distribution("tornado").locate_file(""))
    version = next((each for each in VERSIONS if each != THIS and has_python(each)), THIS)
    built = build(
        target,
        root=copy_sources(root),
        python=(find_python(version),),
        umask=0o077,
        PYTHONPATH=packages,
        TZ="Asia/Kathmandu",
        LC_ALL="C",
    )
    assert built.returncode == 0, built.stderr
    assert target.read_bytes() == archive.read_bytes()


def test_it_holds_what_is_needed_and_nothing_else(archive):
    assert archive.stat().st_size <= MOST_BYTES
    with zipfile.ZipFile(archive) as opened:
        infos = opened.infolist()
    names = [info.filename for info in infos]
    assert names == sorted(names)
    folders = {name.partition("/")[0] for name in names}
    papers = {folder for folder in folders if folder.endswith(".dist-info")}
    alone = {"LICENSE", "NOTICE", "__main__.py", "pynvml.py"}
    assert folders - papers == alone | {"dljob_sidecar", "dljob_wire", "tornado"}
    assert any(name.endswith("licenses/LICENSE") for name in names)
    # A compiled module fits one Python, and an interpreter may have no zlib.
    assert {Path(name).suffix for name in names} <= {".py", ""}
    assert {info.compress_type for info in infos} == {zipfile.ZIP_STORED}
    assert {info.date_time for info in infos} == {(1980, 1, 1, 0, 0, 0)}


def test_nothing_is_built_from_what_is_not_locked(tmp_path):
    root = copy_sources(tmp_path)
    lock = root / "requirements.lock"
    lock.write_text(re.sub(r"(?m)^tornado==\S+", "tornado==6.4.999", lock.read_text()))
    target = tmp_path / "wrong.pyz"
    built = build(target, root=root)
    assert built.returncode == 1
    assert "locked at 6.4.999" in built.stderr
    assert not target.exists()


# --- which interpreters it runs on ----------------------------------------------------------


def test_it_says_its_version_or_that_the_interpreter_is_too_old(archive):
    for version in filter(has_python, VERSIONS):
        ran = run_archive(find_python(version), archive, "--version")
        assert (ran.returncode, ran.stderr) == (0, "")
        assert ran.stdout.startswith(f"dljob-sidecar {__version__} (Python {version}.")
    for version in filter(has_python, TOO_OLD):
        ran = run_archive(find_python(version), archive, "run", "--", "true")
        assert ran.returncode == EXIT_UNAVAILABLE
        assert ran.stderr.startswith("dljob-sidecar: InterpreterTooOld: ")
        assert f" is Python {version}," in ran.stderr
        assert ran.stderr.count("\n") == 1


def make_incomplete_python(folder, missing):
    """Install an interpreter that has been left without a module, as minimal images have them."""
    tell = "import sys; print(sys.executable); print(sys.base_prefix); print(sys.version_info[1])"
    told = subprocess.run(
        [sys.executable, "-c", tell], capture_output=True, text=True, check=True, timeout=240
    )
    _, prefix, minor = told.stdout.split("\n")[:3]
    name = f"python3.{minor}"
    library = folder / "lib" / name
    library.mkdir(parents=True)
    (folder / "bin").mkdir()
    # A copy, because Python follows a link to find out where it lies.
    shutil.copy(Path(prefix) / "bin" / name, folder / "bin" / name)
    for file in (Path(prefix) / "lib" / name).iterdir():
        if file.stem != missing:
            (library / file.name).symlink_to(file)
    for file in (Path(prefix) / "lib").glob("libpython*"):
        (folder / "lib" / file.name).symlink_to(file)
    return folder / "bin" / name


def test_an_interpreter_that_lacks_a_part_is_told_by_name(archive, tmp_path):
    missing = "ctypes"
    python = make_incomplete_python(tmp_path, missing)
    ran = run_archive(str(python), archive, "run", "--socket", str(tmp_path / "s"), "--", "true")
    assert ran.returncode == EXIT_UNAVAILABLE
    assert ran.stderr.startswith("dljob-sidecar: InterpreterIncomplete: ")
    assert f" has no module {missing}; " in ran.stderr
    assert ran.stderr.count("\n") == 1


# --- that it does all that the SideCar does -------------------------------------------------


@pytest.fixture
def everybodys():
    """A folder that others may enter, which is not true of those of pytest."""
    folder = Path(tempfile.mkdtemp(prefix="dljob-", dir="/tmp"))
    folder.chmod(0o777)
    (folder / "python").mkdir()
    yield folder
    shutil.rmtree(folder)


def put_into_volume(archive, folder):
    """Place it where only root may write, as the shared volume of a pod is mounted."""
    volume = folder / "volume"
    volume.mkdir()
    shutil.copyfile(archive, volume / archive.name)
    (volume / archive.name).chmod(0o444)
    volume.chmod(0o555)
    return volume / archive.name


def become_stranger(python, folder):
    """Return how to start an interpreter as a stranger, and where that will find it."""
    tell = "import os, sys; print(os.path.realpath(sys.executable)); print(sys.base_prefix)"
    told = subprocess.run(
        [python, "-c", tell], capture_output=True, text=True, check=True, timeout=240
    )
    executable, prefix = (Path(line).resolve() for line in told.stdout.split("\n")[:2])
    seen = str(folder / "python" / executable.relative_to(prefix))
    wrapper = [sys.executable, "-S", str(HERE / "strangers.py"), str(folder), str(prefix)]
    probe = subprocess.run(
        [*wrapper, seen, "-c", TELL], capture_output=True, check=False, timeout=240
    )
    if probe.returncode != 0:
        pytest.skip(f"this machine cannot make an unknown user: {probe.stderr.decode()[-200:]}")
    return (*wrapper, seen, "-I", "-S", "-W", "error"), seen


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
@pytest.mark.parametrize("version", VERSIONS)
def test_a_stranger_trains_on_a_machine_that_can_only_be_read(archive, everybodys, version):
    packed = put_into_volume(archive, everybodys)
    python, seen = become_stranger(find_python(version), everybodys)
    script = everybodys / "train.py"
    script.write_text(TRAINING)
    script.chmod(0o444)
    sidecar = SideCar(
        everybodys,
        # It is in the command line of all that is started, also of spares and helpers.
        str(everybodys),
        *(seen, str(script)),
        python=python,
        program=(str(packed),),
        # The helpers have to start from inside the archive: spare interpreters and the matcher.
        options={"preload": ["wave"], "progress.log": r"step (?P<iteration>\d+)"},
    )
    try:
        ready = sidecar.wait_ready()
        assert (ready.phase, ready.released) == (Phase.READY, True)
        sidecar.wait_for(lambda s: s.warmth.ready == 1)
        sidecar.run(1, "0", "1")
        sidecar.wait_for(lambda s: s.phase is Phase.RUNNING)
        wait_until(lambda: sidecar.state().progress.iteration == 7, what="progress")
        assert f"user {STRANGER} has 0,1 True" in sidecar.told()
        sidecar.run(2, "1")
        sidecar.wait_for(lambda s: s.phase is Phase.RUNNING and s.held_generation == 2)
        wait_until(lambda: f"user {STRANGER} has 1 " in sidecar.told(), what="the second start")
        sidecar.stop(3, leave=True)
        assert sidecar.wait_ended() == 0
        assert find_processes(str(everybodys)) == []
        assert "Traceback" not in sidecar.told()
        assert {file.name for file in packed.parent.iterdir()} == {packed.name}
    finally:
        sidecar.close()


@pytest.mark.story
def test_it_lives_on_when_its_file_is_replaced_by_a_newer_one(archive, tmp_path, token):
    packed = tmp_path / "dljob-sidecar.pyz"
    shutil.copyfile(archive, packed)
    script = tmp_path / "train.py"
    script.write_text(TRAINING)
    sidecar = SideCar(
        tmp_path,
        token,
        *(sys.executable, str(script)),
        python=(sys.executable, "-I", "-S"),
        program=(str(packed),),
        options={"preload": ["wave"], "progress.log": r"step (?P<iteration>\d+)"},
    )
    try:
        sidecar.wait_ready()
        sidecar.wait_for(lambda s: s.warmth.ready == 1)
        newer = tmp_path / "newer"
        newer.write_bytes(b"# of another length\n" + archive.read_bytes())
        newer.replace(packed)
        # The helper that reads the log, and the next spare, are started from here on.
        sidecar.run(1)
        wait_until(lambda: sidecar.state().progress.iteration == 7, what="progress")
        sidecar.wait_for(lambda s: s.warmth.ready == 1)
        assert sidecar.state().problems == ()
        assert "Traceback" not in sidecar.told()
        # Its training ends with it, also where it is killed.
        sidecar.process.kill()
        sidecar.wait_ended()
        wait_until(lambda: not find_processes(str(tmp_path)), what="the end of all")
    finally:
        sidecar.close()
