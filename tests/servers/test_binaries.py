"""Servers for tests are found where they should be, built once, and missed loudly."""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.servers.binaries import (
    FERRETDB,
    FOLDER,
    Unavailable,
    cache_folder,
    find_ferretdb,
    find_or_build,
)


def make_executable(path: Path, content: str = "#!/bin/sh\n") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    path.chmod(0o755)
    return path


@pytest.fixture
def bare(tmp_path: Path) -> dict[str, str]:
    """An environment in which there is nothing."""
    return {"HOME": str(tmp_path / "home"), "PATH": ""}


def test_an_explicit_folder_comes_first_then_the_path_then_the_cache(tmp_path: Path, bare):
    cached = make_executable(cache_folder(bare) / FERRETDB)
    assert find_or_build(bare) == cached
    on_path = make_executable(tmp_path / "bin" / FERRETDB)
    bare["PATH"] = f"/nowhere:{on_path.parent}"
    assert find_or_build(bare) == on_path
    explicit = make_executable(tmp_path / "explicit" / FERRETDB)
    bare[FOLDER] = str(explicit.parent)
    assert find_or_build(bare) == explicit


def test_without_go_it_is_unavailable_and_says_where_it_was_looked_for(bare):
    with pytest.raises(Unavailable, match=f"there is none in {FOLDER}, PATH or .*, and no Go"):
        find_or_build(bare)


GO = """#!/bin/sh
echo built >> "{log}"
while [ "$1" != -o ]; do shift; done
sleep 0.2
echo binary > "$2" && chmod +x "$2"
"""


def test_it_is_built_once_however_many_want_it(tmp_path: Path, bare):
    log = tmp_path / "log"
    bin_folder = make_executable(tmp_path / "bin" / "go", GO.format(log=log)).parent
    bare["PATH"] = f"{bin_folder}:{os.environ['PATH']}"
    with ThreadPoolExecutor(4) as threads:
        found = set(threads.map(lambda _: find_or_build(bare), range(4)))
    assert found == {cache_folder(bare) / FERRETDB}
    assert log.read_text().split() == ["built"]
    assert sorted(each.name for each in cache_folder(bare).iterdir()) == [FERRETDB, "lock"]


def test_a_build_that_fails_says_why_and_leaves_nothing(tmp_path: Path, bare):
    failing = "#!/bin/sh\necho one >&2; echo 'go.mod requires go >= 1.99' >&2; exit 1\n"
    bin_folder = make_executable(tmp_path / "bin" / "go", failing).parent
    bare["PATH"] = f"{bin_folder}:{os.environ['PATH']}"
    with pytest.raises(Unavailable, match=r"it cannot be built with .*: go\.mod requires"):
        find_or_build(bare)
    assert [each.name for each in cache_folder(bare).iterdir()] == ["lock"]


@pytest.mark.parametrize(
    ("is_ci", "outcome"), [("", pytest.skip.Exception), ("true", pytest.fail.Exception)]
)
def test_who_misses_it_is_skipped_but_fails_where_nothing_may_be_missed(
    bare, monkeypatch: pytest.MonkeyPatch, is_ci: str, outcome: type[BaseException]
):
    for name, value in {**bare, FOLDER: "", "CI": is_ci, "XDG_CACHE_HOME": ""}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(outcome, match="no server of the MongoDB protocol: there is none in"):
        find_ferretdb()
