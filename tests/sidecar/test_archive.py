"""``dist/dljob-sidecar.pyz``: one reproducible file that any image can run."""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
import zipfile
from importlib import metadata
from pathlib import Path

import pytest

from dljob_sidecar import EXIT_UNAVAILABLE, __version__
from dljob_wire.messages import Phase
from tests.sidecar.archives import build
from tests.sidecar.drivers import HERE, ROOT, find_processes, run_program, wait_until
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
    """Copy the sources of the archive, as in a fresh checkout."""
    for name in ("LICENSE", "NOTICE", "requirements.lock"):
        shutil.copyfile(ROOT / name, folder / name)
    hide = shutil.ignore_patterns("__pycache__")
    for name in ("scripts", "sidecar"):
        shutil.copytree(ROOT / name, folder / name, ignore=hide, copy_function=shutil.copyfile)
    return folder


def run_archive(python, archive, *arguments):
    return run_program([python, "-I", "-S", "-W", "error", str(archive), *arguments])


@pytest.fixture(scope="module")
def archive(tmp_path_factory):
    target = tmp_path_factory.mktemp("archive") / "dljob-sidecar.pyz"
    built = build(target)
    assert built.returncode == 0, built.stderr
    return target


def test_build_is_reproducible(archive, tmp_path):
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


def test_archive_contains_only_needed_files(archive):
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


def test_unlocked_dependency_fails_the_build(tmp_path):
    root = copy_sources(tmp_path)
    lock = root / "requirements.lock"
    lock.write_text(re.sub(r"(?m)^tornado==\S+", "tornado==6.4.999", lock.read_text()))
    target = tmp_path / "wrong.pyz"
    built = build(target, root=root)
    assert built.returncode == 1
    assert "locked at 6.4.999" in built.stderr
    assert not target.exists()


def test_archive_prints_version_or_interpreter_too_old(archive):
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
    """Install an interpreter that lacks a module, as in minimal images."""
    tell = "import sys; print(sys.executable); print(sys.base_prefix); print(sys.version_info[1])"
    printed = run_program([sys.executable, "-c", tell], check=True)
    _, prefix, minor = printed.stdout.split("\n")[:3]
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


def test_incomplete_interpreter_names_the_missing_module(archive, tmp_path):
    missing = "ctypes"
    python = make_incomplete_python(tmp_path, missing)
    ran = run_archive(str(python), archive, "run", "--socket", str(tmp_path / "s"), "--", "true")
    assert ran.returncode == EXIT_UNAVAILABLE
    assert ran.stderr.startswith("dljob-sidecar: InterpreterIncomplete: ")
    assert f" has no module {missing}; " in ran.stderr
    assert ran.stderr.count("\n") == 1


@pytest.fixture
def public_folder():
    """A folder that other users may enter, unlike those of pytest."""
    folder = Path(tempfile.mkdtemp(prefix="dljob-", dir="/tmp"))
    folder.chmod(0o777)
    (folder / "python").mkdir()
    yield folder
    shutil.rmtree(folder)


def put_into_volume(archive, folder):
    """Place it where only root may write, as in the shared volume of a pod."""
    volume = folder / "volume"
    volume.mkdir()
    shutil.copyfile(archive, volume / archive.name)
    (volume / archive.name).chmod(0o444)
    volume.chmod(0o555)
    return volume / archive.name


def become_stranger(python, folder):
    """Return the command that starts an interpreter as a stranger, and its path there."""
    tell = "import os, sys; print(os.path.realpath(sys.executable)); print(sys.base_prefix)"
    printed = run_program([python, "-c", tell], check=True)
    executable, prefix = (Path(line).resolve() for line in printed.stdout.split("\n")[:2])
    seen = str(folder / "python" / executable.relative_to(prefix))
    wrapper = [sys.executable, "-S", str(HERE / "strangers.py"), str(folder), str(prefix)]
    probe = run_program([*wrapper, seen, "-c", TELL])
    if probe.returncode != 0:
        pytest.skip(f"this machine cannot make an unknown user: {probe.stderr[-200:]}")
    return (*wrapper, seen, "-I", "-S", "-W", "error"), seen


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
@pytest.mark.parametrize("version", VERSIONS)
def test_unknown_user_trains_on_a_read_only_machine(archive, public_folder, version):
    packed = put_into_volume(archive, public_folder)
    python, seen = become_stranger(find_python(version), public_folder)
    script = public_folder / "train.py"
    script.write_text(TRAINING)
    script.chmod(0o444)
    with SideCar(
        public_folder,
        # It is in the command line of all that is started, also of spares and helpers.
        str(public_folder),
        *(seen, str(script)),
        python=python,
        program=(str(packed),),
        # The helpers have to start from inside the archive: spare interpreters and the matcher.
        options={"preload": ["wave"], "progress.log": r"step (?P<iteration>\d+)"},
    ) as sidecar:
        ready = sidecar.state()
        assert (ready.phase, ready.released) == (Phase.READY, True)
        sidecar.wait_for(lambda s: s.warmth.ready == 1)
        sidecar.train(1, "0", "1")
        wait_until(lambda: sidecar.state().progress.iteration == 7, what="progress")
        assert f"user {STRANGER} has 0,1 True" in sidecar.read_log()
        sidecar.train(2, "1")
        wait_until(lambda: f"user {STRANGER} has 1 " in sidecar.read_log(), what="the second start")
        sidecar.stop(3, leave=True)
        assert sidecar.wait_ended() == 0
        assert find_processes(str(public_folder)) == []
        assert "Traceback" not in sidecar.read_log()
        assert {file.name for file in packed.parent.iterdir()} == {packed.name}


@pytest.mark.story
def test_archive_may_be_replaced_while_it_runs(start, archive, tmp_path, token):
    packed = tmp_path / "dljob-sidecar.pyz"
    shutil.copyfile(archive, packed)
    script = tmp_path / "train.py"
    script.write_text(TRAINING)
    sidecar = start(
        command=(sys.executable, str(script), token),
        python=(sys.executable, "-I", "-S"),
        program=(str(packed),),
        options={"preload": ["wave"], "progress.log": r"step (?P<iteration>\d+)"},
    )
    sidecar.wait_for(lambda s: s.warmth.ready == 1)
    newer = tmp_path / "newer"
    newer.write_bytes(b"# of another length\n" + archive.read_bytes())
    newer.replace(packed)
    # The helper that reads the log, and the next spare, are started from here on.
    sidecar.run(1)
    wait_until(lambda: sidecar.state().progress.iteration == 7, what="progress")
    sidecar.wait_for(lambda s: s.warmth.ready == 1)
    assert sidecar.state().problems == ()
    assert "Traceback" not in sidecar.read_log()
    # Its training ends with it, also where it is killed.
    sidecar.process.kill()
    sidecar.wait_ended()
    wait_until(lambda: not find_processes(str(tmp_path)), what="the end of all")
