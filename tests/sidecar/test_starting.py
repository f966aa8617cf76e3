"""``sidecar-start`` finds an interpreter in an unknown image."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

import pytest

from dljob_wire.messages import Phase
from tests.sidecar.archives import build
from tests.sidecar.drivers import ROOT, run_program

pytestmark = pytest.mark.processes

CANNOT_BE_FOUND = 127


def find_shells():
    shells = (words.split() for words in ("dash", "bash --posix", "busybox sh"))
    found = [words for words in shells if shutil.which(words[0])]
    assert found
    return found


@pytest.fixture(scope="module")
def volume(tmp_path_factory):
    """The files of the init container."""
    folder = tmp_path_factory.mktemp("volume")
    built = build(folder / "dljob-sidecar.pyz")
    assert built.returncode == 0, built.stderr
    shutil.copy(ROOT / "sidecar" / "sidecar-start", folder)
    return folder


def run_in(command, path=None):
    environment = {**os.environ, "PATH": os.pathsep.join([*([str(path)] if path else []), "/bin"])}
    return run_program(command, env=environment)


def put(folder, name, text):
    folder.mkdir(exist_ok=True)
    file = folder / name
    file.write_text(text)
    file.chmod(0o755)


def test_first_working_interpreter_is_used(volume, tmp_path):
    put(tmp_path, "python3", "#!/bin/sh\necho no version is set >&2\nexit 1\n")
    put(tmp_path, "python", '#!/bin/sh\n[ "$1" = -I ] && exit 1\necho 3.8\n')
    put(tmp_path, "python3.13", f'#!/bin/sh\necho chosen >&2\nexec {sys.executable} "$@"\n')
    for shell in find_shells():
        ran = run_in([*shell, str(volume / "sidecar-start"), "--version"], tmp_path)
        assert ran.returncode == 0
        assert ran.stdout.startswith("dljob-sidecar ")
        assert ran.stderr == "chosen\n"


def test_named_interpreter_is_the_only_one_tried(volume, tmp_path):
    put(tmp_path / "with a blank", "my python", f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    put(tmp_path, "old", '#!/bin/sh\n[ "$1" = -I ] && exit 1\necho 3.8\n')
    for shell in find_shells():
        launcher = [*shell, str(volume / "sidecar-start"), "--python"]
        ran = run_in([*launcher, str(tmp_path / "with a blank" / "my python"), "--version"])
        assert ran.stdout.startswith("dljob-sidecar ")
        for name, why in (("nowhere", f"(no {tmp_path}/nowhere);"), ("old", "/old is 3.8);")):
            ran = run_in([*launcher, str(tmp_path / name), "--version"])
            assert (ran.returncode, ran.stdout) == (CANNOT_BE_FOUND, "")
            assert ran.stderr.startswith(
                "dljob-sidecar: InterpreterMissing: no Python 3.9 or newer"
            )
            assert why in ran.stderr
            assert ran.stderr.count("\n") == 1


@pytest.mark.story
def test_shell_execs_the_sidecar_and_leaves_no_trace(start, volume, tmp_path, token):
    archive = str(volume / "dljob-sidecar.pyz")
    launcher = (str(volume / "sidecar-start"), "--python", sys.executable)
    direct = (sys.executable, "-I", "-S", archive)
    given = {**os.environ, "SSL_CERT_DIR": "/of/the/image"}
    given.pop("PYTHONPATH", None)
    seen = []
    for name, begin in (("direct", direct), ("launched", launcher)):
        folder = tmp_path / name
        tell = f"import json, os; json.dump(dict(os.environ), open('{folder}/seen', 'w'))"
        training = (sys.executable, "-S", "-c", tell, token)
        sidecar = start(name=name, command=training, python=begin, program=(), environment=given)
        arguments = Path(f"/proc/{sidecar.process.pid}/cmdline").read_bytes().split(b"\0")
        assert arguments[1:4] == [b"-I", b"-S", archive.encode()]
        sidecar.run(1)
        sidecar.wait_phase(Phase.EXITED)
        seen.append(json.loads((folder / "seen").read_text()))
    assert given.items() <= seen[0].items()
    # Only the SideCar ignores the authorities of the image.
    assert ("SSL_CERT_FILE" in seen[0]) == ("SSL_CERT_FILE" in given)
    # Every shell sets these variables itself.
    assert seen[1].keys() - seen[0].keys() <= {"PWD", "OLDPWD", "SHLVL", "_"}
