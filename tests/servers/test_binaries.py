"""Servers for tests are found in order, built once, and reported if they are missing."""

import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.servers import binaries
from tests.servers.binaries import (
    CONTROL_PLANE,
    FERRETDB,
    FOLDER,
    KITS,
    KUBEBUILDER,
    Kit,
    Unavailable,
    find_ferretdb,
    find_or_build,
)

pytestmark = pytest.mark.processes

FERRETDB_NAME = "dljob-test-ferretdb"
TELLS = "#!/bin/sh\necho Kubernetes {}\n"


def make_executable(path: Path, content: str = "#!/bin/sh\n") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    path.chmod(0o755)
    return path


def make_servers(folder: Path, version: str, names: Iterable[str] = CONTROL_PLANE.programs) -> Path:
    for name in names:
        make_executable(folder / name, TELLS.format(version))
    return folder


@pytest.fixture
def bare(tmp_path: Path) -> dict[str, str]:
    return {"HOME": str(tmp_path / "home"), "PATH": ""}


def test_explicit_folder_comes_before_path_and_cache(tmp_path: Path, bare):
    cached = make_executable(FERRETDB.cache_folder(bare) / FERRETDB_NAME)
    assert find_or_build(FERRETDB, bare) == {FERRETDB_NAME: cached}
    on_path = make_executable(tmp_path / "bin" / FERRETDB_NAME)
    bare["PATH"] = f"/nowhere:{on_path.parent}"
    assert find_or_build(FERRETDB, bare) == {FERRETDB_NAME: on_path}
    explicit = make_executable(tmp_path / "explicit" / FERRETDB_NAME)
    bare[FOLDER] = str(explicit.parent)
    assert find_or_build(FERRETDB, bare) == {FERRETDB_NAME: explicit}


def test_programs_of_a_kit_come_from_one_place(tmp_path: Path, bare):
    bare[KUBEBUILDER] = str(make_servers(tmp_path / "assets", "v1.36.0", ["kube-apiserver"]))
    bare[FOLDER] = str(make_servers(tmp_path / "servers", "v1.31.0"))
    found = find_or_build(CONTROL_PLANE, bare)
    assert found == {name: tmp_path / "servers" / name for name in CONTROL_PLANE.programs}


def test_too_old_programs_are_skipped(tmp_path: Path, bare):
    bare[KUBEBUILDER] = str(make_servers(tmp_path / "old", "v1.29.9"))
    bare["PATH"] = str(make_servers(tmp_path / "untold", ""))
    with pytest.raises(Unavailable, match=r"old/kube-apiserver is of v1\.29, older than 1\.30"):
        find_or_build(CONTROL_PLANE, bare)
    cached = make_servers(CONTROL_PLANE.cache_folder(bare), "v1.30.0")
    assert find_or_build(CONTROL_PLANE, bare)["kube-scheduler"] == cached / "kube-scheduler"


@pytest.mark.parametrize("kit", KITS, ids=lambda kit: kit.noun)
def test_without_go_the_message_names_the_places(bare, kit: Kit):
    looked = ", ".join((*kit.folders, "PATH"))
    with pytest.raises(Unavailable, match=f"there is none in {looked} or .*, and no Go"):
        find_or_build(kit, bare)


def test_kubernetes_pins_name_one_release(bare):
    pins = binaries.KUBERNETES.joinpath("go.mod").read_text()
    [pinned] = [line for line in pins.splitlines() if line.startswith("require k8s.io/kubernetes ")]
    version = pinned.rpartition(" ")[2]
    replaced = {line.rpartition(" ")[2] for line in pins.splitlines() if " => " in line}
    assert replaced == {version.replace("v1.", "v0.")}
    assert f"gitVersion={version}" in binaries.stamp()


GO = """#!/bin/sh
echo built >> "{log}"
while [ "$1" != -o ]; do shift; done
sleep 0.2
echo binary > "$2" && chmod +x "$2"
"""


def test_concurrent_builds_build_once(tmp_path: Path, bare):
    log = tmp_path / "log"
    bin_folder = make_executable(tmp_path / "bin" / "go", GO.format(log=log)).parent
    bare["PATH"] = f"{bin_folder}:{os.environ['PATH']}"
    cache = FERRETDB.cache_folder(bare)
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(lambda _: find_or_build(FERRETDB, bare), range(4)))
    assert found == [{FERRETDB_NAME: cache / FERRETDB_NAME}] * 4
    assert log.read_text().split() == ["built"]
    assert sorted(each.name for each in cache.iterdir()) == [FERRETDB_NAME, "lock"]


def test_failed_build_says_why_and_leaves_nothing(tmp_path: Path, bare):
    failing = "#!/bin/sh\necho one >&2; echo 'go.mod requires go >= 1.99' >&2; exit 1\n"
    bin_folder = make_executable(tmp_path / "bin" / "go", failing).parent
    bare["PATH"] = f"{bin_folder}:{os.environ['PATH']}"
    with pytest.raises(Unavailable, match=r"ferretdb cannot be built with .*: go\.mod requires"):
        find_or_build(FERRETDB, bare)
    assert [each.name for each in FERRETDB.cache_folder(bare).iterdir()] == ["lock"]


@pytest.mark.parametrize(
    ("is_ci", "outcome"), [("", pytest.skip.Exception), ("true", pytest.fail.Exception)]
)
def test_missing_kit_skips_or_fails_the_test(
    bare, monkeypatch: pytest.MonkeyPatch, is_ci: str, outcome: type[BaseException]
):
    for name, value in {**bare, FOLDER: "", "CI": is_ci, "XDG_CACHE_HOME": ""}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(outcome, match="no server of the MongoDB protocol: there is none in"):
        find_ferretdb()
