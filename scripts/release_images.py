#!/usr/bin/env python3
"""
Build the images of a release for amd64 and arm64 as OCI layouts, without an engine, a registry or root.

    dljob-operator-VERSION.oci.tar    Debian's Python 3.11, the packages of requirements.operator.lock, and DLJob
    dljob-sidecar-VERSION.oci.tar     Debian's static busybox and the SideCar
    dljob-…-VERSION.cdx.json          the packages of each (CycloneDX)

No program of an image runs while the image is built, so that a machine of either kind builds both. The Debian packages
of images.lock are unpacked, and the wheels of the lock too, each with its checksum; there is no shell and no
pip in the operator's image. ``release_images.py --lock`` renews images.lock from Debian's index.

`skopeo copy --all oci-archive:FILE docker://REGISTRY/NAME:TAG` publishes an image under the same digest.
"""

import argparse
import functools
import hashlib
import importlib.util
import io
import json
import lzma
import marshal
import re
import subprocess
import sys
import tarfile
import urllib.error
import urllib.request
import uuid
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from release_layouts import Entry, Json, Layer, Layout, Tree, folder

ROOT = Path(__file__).resolve().parent.parent
LOCK = ROOT / "images.lock"
CACHE = ROOT / ".release"
"""The files that were fetched, by their checksums or their names."""
PLATFORMS: Mapping[str, Json] = {
    "amd64": {"architecture": "amd64", "os": "linux"},
    "arm64": {"architecture": "arm64", "os": "linux", "variant": "v8"},
}
MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}
"""How wheels name the architectures."""
GLIBC = ("manylinux_2_17", "manylinux2014", "manylinux_2_28", "manylinux_2_34")
"""The wheels that the C library of the image runs."""

PYTHON = (3, 11)
"""Of the image; the Python that builds must be as new, because it compiles the modules."""
HOME = "opt/dljob"
PACKAGES = f"{HOME}/lib/python3.11/site-packages"
USER = 65532

DEBIAN = "http://deb.debian.org"
SNAPSHOT = "http://snapshot.debian.org/archive"
"""Debian's archive keeps a package that a newer version has replaced."""
SUITES = {
    "bookworm": "debian",
    "bookworm-updates": "debian",
    "bookworm-security": "debian-security",
}
PYTHON_PACKAGES = (
    *("base-files", "netbase", "tzdata", "ca-certificates", "media-types"),
    *("libc6", "gcc-12-base", "libgcc-s1", "libstdc++6", "libcrypt1"),
    *("zlib1g", "libbz2-1.0", "liblzma5", "libexpat1", "libffi8", "libssl3", "libsqlite3-0"),
    *("libuuid1", "libpython3.11-minimal", "libpython3.11-stdlib", "python3.11-minimal"),
)
"""With their dependencies, except for the parts of Python that DLJob does not import: readline, curses, dbm and nis."""
TOOLS = ("busybox-static",)
UNREAD = re.compile(
    r"usr/share/(man|info|locale|lintian|bug|doc-base|menu)/|usr/share/doc/(?!.*/copyright$)"
)
"""The files of Debian's packages that no program reads."""


# --- the lock of Debian's packages --------------------------------------------------------


@dataclass(frozen=True)
class Package:
    """A package of Debian at one version for one architecture."""

    architecture: str
    name: str
    version: str
    path: str
    digest: str

    @property
    def url(self) -> str:
        """The name that scanners for vulnerable packages know it by."""
        version = self.version.replace(":", "%3A").replace("+", "%2B").replace("~", "%7E")
        name = self.name.replace("+", "%2B")
        return f"pkg:deb/debian/{name}@{version}?arch={self.architecture}&distro=debian-12"


def read_lock() -> list[Package]:
    lines = LOCK.read_text(encoding="utf-8").splitlines()
    return [Package(*line.split()) for line in lines if line and not line.startswith("#")]


def write_lock() -> None:
    """Take the newest version of each package from Debian's index."""
    lines = [
        "# Written by scripts/release_images.py --lock: architecture, package, version, path, SHA-256."
    ]
    for architecture in PLATFORMS:
        newest: dict[str, Package] = {}
        for found in iter_index(architecture):
            known = newest.get(found.name)
            if known is None or is_newer(found.version, known.version):
                newest[found.name] = found
        for name in (*PYTHON_PACKAGES, *TOOLS):
            each = newest[name]
            lines.append(f"{each.architecture} {name} {each.version} {each.path} {each.digest}")
    LOCK.write_text("\n".join(lines) + "\n", encoding="utf-8")


def iter_index(architecture: str) -> Iterator[Package]:
    for suite, archive in SUITES.items():
        address = f"{DEBIAN}/{archive}/dists/{suite}/main/binary-{architecture}/Packages.xz"
        for stanza in lzma.decompress(read(address)).decode().split("\n\n"):
            fields = dict(re.findall(r"^([A-Z]\S*): (.*)$", stanza, flags=re.MULTILINE))
            if fields.get("Package") in {*PYTHON_PACKAGES, *TOOLS}:
                path = f"{archive}/{fields['Filename']}"
                version, digest = fields["Version"], fields["SHA256"]
                yield Package(architecture, fields["Package"], version, path, digest)


def is_newer(one: str, other: str) -> bool:
    words = ("dpkg", "--compare-versions", one, "gt", other)
    return subprocess.run(words, check=False).returncode == 0  # noqa: S603 - versions of Debian


def read(address: str) -> bytes:
    with urllib.request.urlopen(address, timeout=120) as answer:  # noqa: S310 - one of Debian's above
        content: bytes = answer.read()
        return content


def fetch(package: Package) -> bytes:
    """Return a package that has the checksum of the lock."""
    kept = CACHE / "debian" / package.digest
    if kept.exists():
        return kept.read_bytes()
    archive, _, path = package.path.partition("/")
    try:
        content = read(f"{DEBIAN}/{package.path}")
    except urllib.error.HTTPError:
        # A date after the last of the lock finds all versions of it.
        content = read(f"{SNAPSHOT}/{archive}/20991231T000000Z/{path}")
    if hashlib.sha256(content).hexdigest() != package.digest:
        sys.exit(f"{package.name} {package.version} does not have the checksum of {LOCK.name}")
    kept.parent.mkdir(parents=True, exist_ok=True)
    kept.write_bytes(content)
    return content


# --- what packages of Debian hold ---------------------------------------------------------


def iter_members(archive: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield the members of a package of Debian, which is an archive of ``ar``."""
    position = 8
    while position < len(archive):
        header = archive[position : position + 60]
        size = int(header[48:58])
        yield header[:16].decode().strip().rstrip("/"), archive[position + 60 :][:size]
        position += 60 + size + size % 2


def unpack_debian(package: Package) -> Iterator[tuple[str, Entry]]:
    """Yield the files of a package, and the record of it that scanners read."""
    for name, content in iter_members(fetch(package)):
        if name.startswith("control.tar"):
            with tarfile.open(fileobj=io.BytesIO(content)) as archive:
                control = archive.extractfile("./control")
                assert control is not None
                yield f"var/lib/dpkg/status.d/{package.name}", Entry(control.read())
        elif name.startswith("data.tar"):
            with tarfile.open(fileobj=io.BytesIO(content)) as archive:
                yield from iter_tar(archive)


def iter_tar(archive: tarfile.TarFile) -> Iterator[tuple[str, Entry]]:
    for member in archive:
        path = member.name.removeprefix("./").rstrip("/")
        if path in ("", ".") or UNREAD.match(f"{path}/" if member.isdir() else path):
            continue
        if member.isdir():
            yield path, folder(member.mode)
        elif member.issym():
            yield path, Entry(link=member.linkname)
        else:
            # A hard link has the content of its target.
            opened = archive.extractfile(member)
            assert opened is not None
            yield path, Entry(opened.read(), member.mode)


def make_base(packages: Iterable[Package]) -> Tree:
    """Return a system with Python, as the scripts of its packages would leave it."""
    tree = {path: entry for each in packages for path, entry in unpack_debian(each)}
    trusted = sorted(path for path in tree if path.startswith("usr/share/ca-certificates/"))
    trusted = [path for path in trusted if path.endswith(".crt")]
    users = f"root:x:0:0:root:/root:/sbin/nologin\ndljob:x:{USER}:{USER}::/tmp:/sbin/nologin\n"
    tree["etc/ssl/certs/ca-certificates.crt"] = Entry(
        b"".join(tree[each].content for each in trusted)
    )
    tree["etc/passwd"] = Entry(users.encode())
    tree["etc/group"] = Entry(f"root:x:0:\ndljob:x:{USER}:\n".encode())
    tree["tmp"] = folder(0o1777)
    for name in ("python", "python3"):
        tree[f"usr/bin/{name}"] = Entry(link="python3.11")
    return {**tree, **compile_modules(tree)}


# --- what wheels hold ---------------------------------------------------------------------


def fetch_wheels(architecture: str) -> list[Path]:
    """Fetch the wheels of the operator's lock for an architecture, each with the hash of the lock."""
    target = CACHE / f"wheels-{architecture}"
    platforms = [f"--platform={each}_{MACHINES[architecture]}" for each in GLIBC]
    words = [
        *(sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"),
        *("--no-deps", "--require-hashes", "--only-binary=:all:", "--implementation=cp"),
        *("--python-version=3.11", *platforms, f"--dest={target}"),
        *("--requirement", str(ROOT / "requirements.operator.lock")),
    ]
    done = subprocess.run(words, check=False, capture_output=True, text=True)  # noqa: S603 - pip
    if done.returncode != 0:
        sys.exit(f"pip download failed: {done.stdout}{done.stderr}")
    locked = (ROOT / "requirements.operator.lock").read_text(encoding="utf-8")
    # The folder also keeps what former locks named.
    known = set(re.findall(r"sha256:([0-9a-f]{64})", locked))
    wheels = sorted(target.glob("*.whl"))
    return [each for each in wheels if hashlib.sha256(each.read_bytes()).hexdigest() in known]


def unpack_wheel(wheel: Path) -> Iterator[tuple[str, Entry]]:
    """Yield the files of a wheel where pip would install them, with its programs."""
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if name.endswith("/"):
                continue
            content = archive.read(name)
            place, _, rest = name.partition(".data/")
            kind, _, inner = rest.partition("/")
            if not rest:
                yield f"{PACKAGES}/{name}", Entry(content)
            elif kind == "data":
                yield f"{HOME}/{inner}", Entry(content)
            elif kind == "scripts":
                text = re.sub(rb"\A#!python\w*", f"#!/{HOME}/bin/python".encode(), content)
                yield f"{HOME}/bin/{inner}", Entry(text, 0o755)
            else:
                yield f"{PACKAGES}/{inner}", Entry(content)
            if name.endswith(".dist-info/entry_points.txt"):
                yield from iter_programs(content.decode())
            if name.endswith(".dist-info/METADATA"):
                yield f"{PACKAGES}/{place.rpartition('/')[0]}/INSTALLER", Entry(b"make release\n")


def iter_programs(text: str) -> Iterator[tuple[str, Entry]]:
    """Yield the programs that a file of entry points names."""
    section = re.search(r"^\[console_scripts\]\n((?:[^\[].*\n?|\n)*)", text, flags=re.MULTILINE)
    points = re.findall(r"^(\S+)\s*=\s*([\w.]+):(\w+)", section[1] if section else "", re.MULTILINE)
    for name, module, function in points:
        program = (
            f"#!/{HOME}/bin/python\nimport sys\n\nfrom {module} import {function}\n\n"
            f"sys.exit({function}())\n"
        )
        yield f"{HOME}/bin/{name}", Entry(program.encode(), 0o755)


def make_packages(wheels: Iterable[Path]) -> Tree:
    """Return a virtual environment with these wheels."""
    tree = {path: entry for each in wheels for path, entry in unpack_wheel(each)}
    settings = "home = /usr/bin\ninclude-system-site-packages = false\nversion = 3.11\n"
    tree[f"{HOME}/pyvenv.cfg"] = Entry(settings.encode())
    for name in ("python", "python3", "python3.11"):
        tree[f"{HOME}/bin/{name}"] = Entry(link="/usr/bin/python3.11")
    return {**tree, **compile_modules(tree)}


def make_ours(wheels: Iterable[Path]) -> Tree:
    """Return what our wheels add to that environment."""
    tree = {path: entry for each in wheels for path, entry in unpack_wheel(each)}
    for name in ("LICENSE", "NOTICE"):
        tree[f"{HOME}/{name}"] = Entry((ROOT / name).read_bytes())
    return {**tree, **compile_modules(tree)}


# --- compiled modules ---------------------------------------------------------------------


def compile_modules(tree: Tree) -> Tree:
    """
    Compile the modules of a tree, because no process can do that in a read-only root.

    Each is valid without a look at its source, whose time no layer of ours changes.
    """
    compiled = {}
    for path, entry in tree.items():
        if path.endswith(".py") and not entry.link:
            code = compile_module(f"/{path}", entry.content)
            if code:
                place = PurePosixPath(path)
                compiled[f"{place.parent}/__pycache__/{place.stem}.cpython-311.pyc"] = Entry(code)
    return compiled


@functools.cache
def compile_module(path: str, source: bytes) -> bytes:
    """Return a compiled module; nothing where it is a template or of another Python."""
    try:
        code = compile(source, path, "exec", dont_inherit=True)
    except (SyntaxError, ValueError):
        return b""
    unchecked = (1).to_bytes(4, "little")
    # The second version writes no references, which depend on what else this process holds.
    return b"".join(
        (
            importlib.util.MAGIC_NUMBER,
            unchecked,
            importlib.util.source_hash(source),
            marshal.dumps(code, 2),
        )
    )


# --- the images ---------------------------------------------------------------------------


def label(name: str, version: str, description: str, licences: str) -> Json:
    return {
        "org.opencontainers.image.title": name,
        "org.opencontainers.image.description": description,
        "org.opencontainers.image.licenses": licences,
        "org.opencontainers.image.version": version,
    }


def build_operator(target: Path, version: str, *, ours: Sequence[Path], registry: str) -> str:
    """Write the operator's image; return its digest."""
    if sys.version_info[:2] != PYTHON:
        sys.exit(
            "the images hold Python 3.11, so a release is made with it: make PYTHON=python3.11 …"
        )
    name = "dljob-operator"
    said = "Keeps every GPU of a cluster busy with the training that profits most from it"
    labels = label(name, version, said, "Apache-2.0")
    config = {
        "User": f"{USER}:{USER}",
        "Env": [
            f"PATH=/{HOME}/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            *("PYTHONDONTWRITEBYTECODE=1", "PYTHONUNBUFFERED=1", "HOME=/tmp", "LANG=C.UTF-8"),
        ],
        "Entrypoint": ["python", "-m", "dljob.operator"],
        "Labels": labels,
    }
    layout, images, listed = Layout(), [], []
    added = Layer.of(make_ours(ours))
    for architecture, platform in PLATFORMS.items():
        packages = [each for each in locked_for(architecture) if each.name in PYTHON_PACKAGES]
        wheels = fetch_wheels(architecture)
        layers = (Layer.of(make_base(packages)), Layer.of(make_packages(wheels)), added)
        images.append(layout.add_image(platform, layers, config))
        listed += [*map(describe_debian, packages), *map(describe_wheel, wheels)]
    digest = layout.write(
        target, layout.add_index(images, labels), tag=version, name=name_image(registry, name)
    )
    write_list(target, name, version, digest, [*listed, *map(describe_wheel, ours)])
    return digest


def build_sidecar(target: Path, version: str, *, archive: Path, registry: str) -> str:
    """Write the image that brings the SideCar into pods; return its digest."""
    name = "dljob-sidecar"
    said = "Copies the SideCar of DLJob into a shared volume"
    labels = label(name, version, said, "Apache-2.0 AND GPL-2.0-only")
    config = {
        "User": f"{USER}:{USER}",
        "Env": ["PATH=/bin"],
        # With -f also over what an earlier start of the pod has left there.
        "Entrypoint": ["/bin/cp", "-f", "/sidecar/dljob-sidecar.pyz", "/sidecar/sidecar-start"],
        "Cmd": ["/dljob"],
        "Labels": labels,
    }
    carried = {
        "sidecar/dljob-sidecar.pyz": Entry(archive.read_bytes(), 0o444),
        "sidecar/sidecar-start": Entry((ROOT / "sidecar/sidecar-start").read_bytes(), 0o555),
        **{
            f"sidecar/{each}": Entry((ROOT / each).read_bytes(), 0o444)
            for each in ("LICENSE", "NOTICE")
        },
    }
    layout, images = Layout(), []
    listed = [*describe_carried(archive)]
    for architecture, platform in PLATFORMS.items():
        [package] = [each for each in locked_for(architecture) if each.name in TOOLS]
        unpacked = dict(unpack_debian(package))
        kept = {
            path: each
            for path, each in unpacked.items()
            if path.startswith(("var/", "usr/share/doc/"))
        }
        # Busybox acts as the program of the name by which it is called. There is no shell.
        tools = {"bin/cp": unpacked["bin/busybox"], **kept}
        images.append(layout.add_image(platform, (Layer.of({**tools, **carried}),), config))
        listed.append(describe_debian(package))
    digest = layout.write(
        target, layout.add_index(images, labels), tag=version, name=name_image(registry, name)
    )
    write_list(target, name, version, digest, listed)
    return digest


def name_image(registry: str, name: str) -> str:
    """Return the full name of an image, as containerd keeps it."""
    return f"{registry or 'docker.io/library'}/{name}"


def locked_for(architecture: str) -> list[Package]:
    return [each for each in read_lock() if each.architecture == architecture]


# --- the lists of packages ----------------------------------------------------------------


def write_list(target: Path, name: str, version: str, digest: str, listed: list[Json]) -> None:
    """Write what an image holds as CycloneDX, beside the image."""
    by_url: dict[str, Json] = {}
    for each in listed:
        known = by_url.setdefault(each["purl"], each)
        # The wheels of both architectures are one package with a checksum each.
        known["hashes"] += [found for found in each["hashes"] if found not in known["hashes"]]
    about = {
        "type": "container",
        "bom-ref": f"{name}@{digest}",
        "name": name,
        "version": version,
        "purl": f"pkg:oci/{name}@{digest.replace(':', '%3A')}?tag={version}",
    }
    document = {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_OID, digest)}",
        "version": 1,
        "metadata": {"component": about},
        "components": [by_url[each] for each in sorted(by_url)],
    }
    path = target.with_name(target.name.removesuffix(".oci.tar") + ".cdx.json")
    path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def describe(name: str, version: str, url: str, hashes: Iterable[str]) -> Json:
    return {
        "type": "library",
        "bom-ref": url,
        "name": name,
        "version": version,
        "purl": url,
        "hashes": [{"alg": "SHA-256", "content": each} for each in hashes],
    }


def describe_debian(package: Package) -> Json:
    return describe(package.name, package.version, package.url, [package.digest])


def describe_wheel(wheel: Path) -> Json:
    with zipfile.ZipFile(wheel) as archive:
        [place] = [each for each in archive.namelist() if is_metadata(each)]
        text = archive.read(place).decode()
    return describe_metadata(text, [hashlib.sha256(wheel.read_bytes()).hexdigest()])


def describe_carried(archive: Path) -> Iterator[Json]:
    """Yield the packages that the SideCar's archive carries."""
    with zipfile.ZipFile(archive) as opened:
        for name in opened.namelist():
            if is_metadata(name):
                yield describe_metadata(opened.read(name).decode(), [])


def is_metadata(name: str) -> bool:
    return bool(re.fullmatch(r"[^/]+\.dist-info/METADATA", name))


def describe_metadata(text: str, hashes: Iterable[str]) -> Json:
    head = text.partition("\n\n")[0]
    fields: dict[str, Any] = dict(re.findall(r"^([A-Z]\S*): (.*)$", head, flags=re.MULTILINE))
    name = re.sub(r"[-_.]+", "-", fields["Name"]).lower()
    url = f"pkg:pypi/{name}@{fields['Version']}"
    described = describe(name, fields["Version"], url, hashes)
    if licence := fields.get("License-Expression"):
        described["licenses"] = [{"expression": licence}]
    return described


IMAGES: Mapping[str, Callable[..., str]] = {"operator": build_operator, "sidecar": build_sidecar}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--lock", action="store_true", required=True)
    parser.parse_args()
    write_lock()
