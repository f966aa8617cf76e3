"""
Where the servers of the tests come from: found, or built once into a cache.

A kit is what is looked for together, in the folders that environment variables name, on the path, and
in a cache that is keyed by the pins; it is built into that cache where there is Go. Without any of these
the tests that need it are skipped and say why, but with ``CI=true`` they fail.

To build everything beforehand: ``make servers`` (:mod:`tests.servers.preparing`).
"""

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn, TypeVar

import pytest

T = TypeVar("T")

FOLDER = "DLJOB_TEST_SERVERS"
KUBEBUILDER = "KUBEBUILDER_ASSETS"
"""Where the tools of the Kubernetes world look for an API server and etcd."""
HERE = Path(__file__).parent
BUILD_SECONDS = 3600.0
"""
Go keeps the packages that it has compiled, but a machine that is busy with others takes long for the large ones.
"""
VERSION_SECONDS = 240.0


class Unavailable(Exception):
    """There is no such server here, and why."""


@dataclass(frozen=True, kw_only=True)
class Oldest:
    """How the version of a kit is learnt, and from which one on it will do."""

    command: tuple[str, ...]
    """A program of the kit with the arguments by which it tells its version."""
    version: tuple[int, int]

    def objection(self, found: Mapping[str, Path]) -> str:
        """Say why what was found will not do; nothing if it does."""
        name, *arguments = self.command
        command = [str(found[name]), *arguments]
        ran = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=VERSION_SECONDS
        )
        told = re.search(r"v(\d+)\.(\d+)", ran.stdout)
        if told is None:
            return f"{found[name]} does not tell its version"
        if tuple(map(int, told.groups())) < self.version:
            least = ".".join(map(str, self.version))
            return f"{found[name]} is of {told.group()}, older than {least}"
        return ""


@dataclass(frozen=True, kw_only=True)
class Kit:
    """Programs that belong together, and how they are built."""

    noun: str
    """The name of these programs in the message that they are missing."""
    programs: Mapping[str, str]
    """By the name of its file, the Go package of each."""
    source: Path
    """The folder of a Go module that pins them."""
    pins: tuple[str, ...] = ("go.mod", "go.sum")
    """The files there that say what will be built."""
    flags: tuple[str, ...] = ()
    linked: str = ""
    """The flags for the linker, in addition to those that leave out debug information."""
    folders: tuple[str, ...] = (FOLDER,)
    """The variables that may name a folder in which all of them are."""
    oldest: Oldest | None = None
    fixed: Mapping[str, str] = field(
        # The Go of this machine or none: another one would be downloaded unasked.
        default_factory=lambda: {
            "GOTOOLCHAIN": "local",
            "CGO_ENABLED": "0",
            "GOFLAGS": "-buildvcs=false",
        }
    )

    def cache_folder(self, environment: Mapping[str, str]) -> Path:
        home = Path(environment.get("XDG_CACHE_HOME") or Path(environment["HOME"]) / ".cache")
        pins = b"\0".join((self.source / name).read_bytes() for name in self.pins)
        return home / "dljob-test-servers" / hashlib.sha256(pins).hexdigest()[:12]


FERRETDB = Kit(
    noun="server of the MongoDB protocol",
    programs={"dljob-test-ferretdb": "."},
    source=HERE / "ferretdb",
    pins=("go.mod", "go.sum", "main.go"),
    flags=("-tags=ferretdb_no_postgresql,ferretdb_no_mysql,ferretdb_no_hana",),
)

KUBERNETES = HERE / "kubernetes"
OLDEST = (1, 30)
"""Admission policies are stable from then on, and rules of resources name the field they blame."""


def stamp() -> str:
    """Tell the programs of Kubernetes their version, as its own build does."""
    pinned = re.search(r"k8s\.io/kubernetes (v(\d+)\.(\d+)\.\d+)$", _read_pins(), re.MULTILINE)
    assert pinned is not None
    values = {"gitVersion": pinned[1], "gitMajor": pinned[2], "gitMinor": pinned[3]}
    where = "k8s.io/component-base/version"
    told = {**values, "gitTreeState": "clean"}
    return " ".join(f"-X {where}.{name}={value}" for name, value in told.items())


def _read_pins() -> str:
    return (KUBERNETES / "go.mod").read_text(encoding="utf-8")


def _commands(*names: str) -> dict[str, str]:
    return {name: f"k8s.io/kubernetes/cmd/{name}" for name in names}


# One kit, because they are made for each other: a scheduler may not be newer than its API server.
CONTROL_PLANE = Kit(
    noun="control plane of Kubernetes",
    programs=_commands("kube-apiserver", "kube-controller-manager", "kube-scheduler"),
    source=KUBERNETES,
    linked=stamp(),
    folders=(KUBEBUILDER, FOLDER),
    oldest=Oldest(command=("kube-apiserver", "--version"), version=OLDEST),
)
KUBECTL = Kit(
    noun="kubectl",
    programs=_commands("kubectl"),
    source=KUBERNETES,
    linked=stamp(),
    folders=(KUBEBUILDER, FOLDER),
    oldest=Oldest(command=("kubectl", "version", "--client"), version=OLDEST),
)
# The programs of a node that its distribution does not have.
NODE = Kit(
    noun="kubelet with kube-proxy",
    programs=_commands("kubelet", "kube-proxy"),
    source=KUBERNETES,
    linked=stamp(),
    oldest=Oldest(command=("kubelet", "--version"), version=OLDEST),
)
ETCD = Kit(
    noun="etcd",
    programs={"etcd": "go.etcd.io/etcd/server/v3"},
    source=HERE / "etcd",
    folders=(KUBEBUILDER, FOLDER),
)


def stamp_helm() -> str:
    """Tell Helm its version, and which Kubernetes it is to render for where it has none, as its build does."""
    pins = (HERE / "helm" / "go.mod").read_text(encoding="utf-8")
    version = re.search(r"helm\.sh/helm/v3 (v\S+)$", pins, re.MULTILINE)
    client = re.search(r"k8s\.io/client-go v0\.(\d+)\.", pins)
    assert version is not None
    assert client is not None
    module = "helm.sh/helm/v3"
    told = {f"{module}/internal/version.version": version[1]}
    for package in ("pkg/chartutil", "pkg/lint/rules"):
        told[f"{module}/{package}.k8sVersionMajor"] = "1"
        told[f"{module}/{package}.k8sVersionMinor"] = client[1]
    return " ".join(f"-X {name}={value}" for name, value in told.items())


HELM = Kit(
    noun="Helm",
    programs={"helm": "helm.sh/helm/v3/cmd/helm"},
    source=HERE / "helm",
    linked=stamp_helm(),
    oldest=Oldest(command=("helm", "version", "--short"), version=(3, 18)),
)
"""Schemas are understood as a whole from 3.18 on."""
PROMQL = Kit(
    noun="parser and engine of Prometheus",
    programs={"dljob-test-promql": "."},
    source=HERE / "promql",
    pins=("go.mod", "go.sum", "main.go"),
)
KITS = (FERRETDB, ETCD, CONTROL_PLANE, KUBECTL, NODE, HELM, PROMQL)


def find_ferretdb() -> Path:
    """Return the server of the MongoDB protocol, or skip the test that wants it."""
    return demand(FERRETDB)["dljob-test-ferretdb"]


def demand(*kits: Kit) -> dict[str, Path]:
    """Return all their programs by name, or skip the test that wants them."""
    try:
        return find_all(*kits)
    except Unavailable as error:
        do_without(error)


def do_without(error: Unavailable) -> NoReturn:
    """Skip the test that wants what is not there; fail it where nothing may be missed."""
    if os.environ.get("CI") == "true":
        pytest.fail(str(error), pytrace=False)
    pytest.skip(str(error))


@contextmanager
def entered(context: AbstractContextManager[T]) -> Iterator[T]:
    """Be in what may not be to be had, or do without it."""
    with ExitStack() as stack:
        try:
            there = stack.enter_context(context)
        except Unavailable as error:
            do_without(error)
        yield there


def find_all(*kits: Kit) -> dict[str, Path]:
    """Return all their programs by name, found or built."""
    found: dict[str, Path] = {}
    for kit in kits:
        try:
            found |= find_or_build(kit, dict(os.environ))
        except Unavailable as error:
            raise Unavailable(f"no {kit.noun}: {error}") from error
    return found


def find_or_build(kit: Kit, environment: dict[str, str]) -> dict[str, Path]:
    """Return explicit programs, those on the path, cached ones, or new ones."""
    objections: list[str] = []
    found = find(kit, environment, objections)
    return found or build(kit, environment, objections)


def find(kit: Kit, environment: Mapping[str, str], objections: list[str]) -> dict[str, Path] | None:
    """Return the first that will do; what is said against those passed over is added."""
    path = environment.get("PATH", "").split(os.pathsep)
    named = [[environment.get(variable, "")] for variable in kit.folders]
    for folders in (*named, path):
        found = _look(kit, folders)
        objection = kit.oldest.objection(found) if found and kit.oldest else ""
        if found and not objection:
            return found
        objections += [objection] if objection else []
    return _look(kit, [str(kit.cache_folder(environment))])


def _look(kit: Kit, folders: list[str]) -> dict[str, Path] | None:
    found = {}
    for name in kit.programs:
        paths = (Path(folder) / name for folder in folders if folder)
        at = next((path for path in paths if os.access(path, os.X_OK)), None)
        if at is None:
            return None
        found[name] = at
    return found


def build(kit: Kit, environment: dict[str, str], objections: list[str]) -> dict[str, Path]:
    """Build what is missing into the cache, once for all who want it at the same time."""
    cache = kit.cache_folder(environment)
    go = shutil.which("go", path=environment.get("PATH"))
    if go is None:
        looked = ", ".join((*kit.folders, "PATH"))
        passed_over = "".join(f" ({objection})" for objection in objections)
        raise Unavailable(
            f"there is none in {looked} or {cache}{passed_over}, and no Go to build it"
        )
    with locked(cache), tempfile.TemporaryDirectory(dir=cache) as folder:
        for name in kit.programs:
            if not (cache / name).exists():
                _compile(kit, name, [go, "build", "-o", str(Path(folder) / name)], environment)
                (Path(folder) / name).replace(cache / name)
    return {name: cache / name for name in kit.programs}


@contextmanager
def locked(cache: Path) -> Iterator[None]:
    """
    Wait until no other process builds; a lock of the kernel, so that it ends with its process.
    """
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _compile(kit: Kit, name: str, command: list[str], environment: dict[str, str]) -> None:
    linked = f"-ldflags=-s -w {kit.linked}".rstrip()
    try:
        built = subprocess.run(
            [*command, "-trimpath", linked, *kit.flags, kit.programs[name]],
            cwd=kit.source,
            env=environment | dict(kit.fixed),
            capture_output=True,
            text=True,
            check=False,
            timeout=BUILD_SECONDS,
        )
    except subprocess.TimeoutExpired as error:
        raise Unavailable(f"building {name} took more than {BUILD_SECONDS:.0f} s") from error
    if built.returncode != 0:
        lines = built.stderr.strip().splitlines() or ["no output"]
        raise Unavailable(f"{name} cannot be built with {command[0]}: {lines[-1]}")
