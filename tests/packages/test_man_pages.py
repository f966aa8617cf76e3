"""The man pages: one for each verb, in a form that troff reads without a warning."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import click
import pytest
from hatchling.metadata.core import ProjectMetadata
from hatchling.plugin.manager import PluginManager

from dljob.cli.main import cli
from tests.packages.distributions import ROOT
from tests.scripts import loaded

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    folder = tmp_path_factory.mktemp("man")
    subprocess.run(
        [sys.executable, ROOT / "scripts" / "man_pages.py", folder], check=True, timeout=300.0
    )
    return folder


def begin_build(folder, target):
    """Let the hook make its pages, as Hatchling does; return the hook and the files that it adds to the build."""
    metadata = ProjectMetadata(str(ROOT), PluginManager())
    with loaded("man_pages.py") as module:
        hook = module.get_build_hook()(str(ROOT), {}, None, metadata, str(folder), target)
    added: dict[str, dict[str, str]] = {"shared_data": {}, "force_include": {}}
    hook.initialize("standard", added)
    return hook, added, [Path(name) for name in added["shared_data"] | added["force_include"]]


def test_two_builds_at_once_have_their_pages_apart(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    first, of_first, pages_of_first = begin_build(tmp_path, "wheel")
    second, of_second, pages_of_second = begin_build(tmp_path, "sdist")
    assert pages_of_first
    assert len(pages_of_first) == len(pages_of_second)
    assert not {*pages_of_first} & {*pages_of_second}
    first.finalize("standard", of_first, "")
    assert not any(page.exists() for page in pages_of_first)
    assert all(page.read_text(encoding="ascii").startswith(".TH") for page in pages_of_second)
    second.finalize("standard", of_second, "")
    assert not any(page.exists() for page in pages_of_second)


def names_of(command, path):
    yield path
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            yield from names_of(command.get_command(context, name), f"{path}-{name}")


def test_each_verb_has_a_page_with_all_its_options(pages):
    assert {page.stem for page in pages.iterdir()} == set(names_of(cli, "dljob"))
    page = (pages / "dljob-simulate.1").read_text(encoding="ascii")
    sections = re.findall(r"^\.SH (.+)$", page, re.MULTILINE)
    assert sections == ["NAME", "SYNOPSIS", "DESCRIPTION", "OPTIONS", "SEE ALSO"]
    simulate = cli.get_command(click.Context(cli), "simulate")
    assert simulate is not None
    for param in simulate.params:
        if isinstance(param, click.Option) and not param.hidden:
            assert param.opts[-1].replace("-", "\\-") in page


def test_troff_reads_each_page_without_a_warning(pages):
    if shutil.which("groff") is None:
        pytest.skip("groff is not installed")
    for page in pages.iterdir():
        read = subprocess.run(
            ["groff", "-man", "-ww", "-Tutf8", page],
            capture_output=True,
            text=True,
            check=True,
            timeout=60.0,
        )
        assert read.stderr == "", page.name
