"""The version stands in pyproject.toml, and all else has it from there."""

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

from dljob_sidecar import __version__
from tests.scripts import loaded

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
COPIES = ("sidecar/dljob_sidecar/__init__.py", "manifests/chart/Chart.yaml", "docs/install.md")


def test_every_copy_has_the_version_of_the_project():
    with loaded("write-version") as script:
        assert list(script.iter_files(PROJECT["version"])) == [], "run scripts/write-version"
    chart = yaml.safe_load((ROOT / "manifests/chart/Chart.yaml").read_text(encoding="utf-8"))
    assert {__version__, chart["version"], chart["appVersion"]} == {PROJECT["version"]}


@pytest.mark.parametrize("name", COPIES)
def test_a_copy_that_differs_is_found(tmp_path, monkeypatch, name):
    with loaded("write-version") as script:
        copies = {*COPIES, *script.COPIES}
    for copy in copies:
        target = tmp_path / copy
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / copy, target)
    file = tmp_path / name
    file.write_text(file.read_text().replace(PROJECT["version"], "9.8.7"), encoding="utf-8")
    with loaded("write-version") as script:
        monkeypatch.setattr(script, "ROOT", tmp_path)
        [(path, text)] = script.iter_files(PROJECT["version"])
    assert path == file
    assert text == (ROOT / name).read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.parametrize(
    "module",
    ["dljob.cli.main", "dljob.operator", "dljob_gangs", "dljob_web.portal", "dljob_sidecar"],
)
def test_every_program_prints_the_version_of_the_project(module):
    words = ("-c", "from dljob.cli.main import main; main()") if "." in module else ("-m", module)
    ran = subprocess.run(
        [sys.executable, *words, "--version"],
        env={"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60.0,
    )
    assert PROJECT["version"] in ran.stdout.split(), ran.stderr
