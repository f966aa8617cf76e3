"""
Finds the servers of the tests, or builds them once into a cache.

A kit is a set of programs that are looked for together: in the folders that environment variables name,
on the path, and in a cache with a key from the pins. If Go is there, it is built into the cache;
otherwise tests that need it are skipped with the reason, and fail with ``CI=true``.

``make servers`` builds everything beforehand (:mod:`tests.servers.preparing`).
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
"""The usual variable for a folder with API server and etcd."""
HERE = Path(__file__).parent
BUILD_SECONDS = 3600.0
"""Go caches compiled packages, but a busy machine takes long for the large ones."""
VERSION_SECONDS = 240.0


class Unavailable(Exception):
    """A server is missing, for this reason."""


@dataclass(frozen=True, kw_only=True)
class Oldest:
    """The oldest version of a kit that will do."""

    command: tuple[str, ...]
    """A program of the kit, with arguments that print its version."""
    version: tuple[int, int]

    def objection(self, found: Mapping[str, Path]) -> str:
        """The reason why these programs will not do; empty if they do."""
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
    """Programs that belong together, and their build."""

    noun: str
    """The name of the programs in messages."""
    programs: Mapping[str, str]
    """The Go package of each program."""
    source: Path
    """The folder of a Go module with the pins."""
    pins: tuple[str, ...] = ("go.mod", "go.sum")
    """The files that decide what is built."""
    flags: tuple[str, ...] = ()
    linked: str = ""
    """More flags for the linker."""
    folders: tuple[str, ...] = (FOLDER,)
    """Variables that may name a folder with all programs."""
    oldest: Oldest | None = None
    fixed: Mapping[str, str] = field(
        # The local Go only: another one would be downloaded.
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
"""The first version with stable admission policies and precise fields in rule errors."""


def stamp() -> str:
    """Linker flags for the version of Kubernetes, as in its own build."""
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


# One kit: a scheduler may not be newer than its API server.
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
# The node's programs that its distribution lacks.
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
    """Linker flags for the versions of Helm and of its default Kubernetes, as in its own build."""
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
"""The first version that evaluates schemas completely."""
PROMQL = Kit(
    noun="parser and engine of Prometheus",
    programs={"dljob-test-promql": "."},
    source=HERE / "promql",
    pins=("go.mod", "go.sum", "main.go"),
)
KUEUE = Kit(
    noun="Kueue",
    programs={"kueue": "sigs.k8s.io/kueue/cmd/kueue"},
    source=HERE / "kueue",
)
KITS = (FERRETDB, ETCD, CONTROL_PLANE, KUBECTL, NODE, HELM, PROMQL, KUEUE)


def find_ferretdb() -> Path:
    """The server of the MongoDB protocol; skips the test without it."""
    return demand(FERRETDB)["dljob-test-ferretdb"]


def demand(*kits: Kit) -> dict[str, Path]:
    """All programs of the kits by name; skips the test without them."""
    try:
        return find_all(*kits)
    except Unavailable as error:
        do_without(error)


def do_without(error: Unavailable) -> NoReturn:
    """Skip the test, or fail it where all tests must run."""
    if os.environ.get("CI") == "true":
        pytest.fail(str(error), pytrace=False)
    pytest.skip(str(error))


@contextmanager
def entered(context: AbstractContextManager[T]) -> Iterator[T]:
    """Enter a context; skip the test if it is unavailable."""
    with ExitStack() as stack:
        try:
            there = stack.enter_context(context)
        except Unavailable as error:
            do_without(error)
        yield there


def find_all(*kits: Kit) -> dict[str, Path]:
    """All programs of the kits by name, found or built."""
    found: dict[str, Path] = {}
    for kit in kits:
        try:
            found |= find_or_build(kit, dict(os.environ))
        except Unavailable as error:
            raise Unavailable(f"no {kit.noun}: {error}") from error
    return found


def find_or_build(kit: Kit, environment: dict[str, str]) -> dict[str, Path]:
    """Explicit programs, those on the path, cached ones, or new ones."""
    objections: list[str] = []
    found = find(kit, environment, objections)
    return found or build(kit, environment, objections)


def find(kit: Kit, environment: Mapping[str, str], objections: list[str]) -> dict[str, Path] | None:
    """The first programs that will do; adds the objections to others."""
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
    """Build missing programs into the cache, once for all processes."""
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
    """Keep other processes from building; the kernel releases the lock with the process."""
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
