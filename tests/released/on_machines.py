"""The parts that one machine installs: the wheel and its extras, the SideCar, man pages, completions, the arm64 image."""

import gzip
import io
import os
import re
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from tests.released.rows import Archive, Check, Files, say
from tests.servers.binaries import Unavailable
from tests.servers.packages import install

VERSIONS = ("3.11", "3.12", "3.13", "3.14")
OLDEST = "3.9"
"""Of the SideCar, which runs in images that others made."""
TRACE = "job_id,submit_time_s,duration_s,num_gpus\n0,0,60,1\n"
EXTRAS = {
    "cluster": "import kubernetes, dljob.client.cluster",
    "sim": "import scipy.optimize, dljob.sim",
    "operator": "import dljob.operator.operating, cryptography, kopf, pymongo, kubernetes",
    "mongo": "import pymongo, dljob.store",
    "plots": "import matplotlib.pyplot",
    "all": "import dljob.operator, dljob.sim, kopf, matplotlib.pyplot, pymongo",
}
"""The modules that each extra is for."""
ADD_ONS = {
    "gangs": ("import dljob_gangs.running", ()),
    "lab": ("import dljob_lab.policies.elastic.ones", ("compare", "--help")),
    "mcp": ("import dljob_mcp.serving", ("mcp", "--skill")),
    "web": ("import dljob_web.serving", ("web", "--help")),
}
"""A module of each add-on, and a verb that it brings to the command."""


def checks(files: Files, folder: Path) -> Iterator[Check]:
    yield Check("SHA256SUMS", "sha256sum --check", partial(check_sums, files, folder))
    pythons = list(iter_pythons())
    for python in pythons:
        place = name_python(python, folder)
        yield Check("wheel", place, partial(check_wheel, files, python, folder))
        yield Check("SideCar, one file", place, partial(check_sidecar, files, python, folder))
    older = find_python(OLDEST)
    if older:
        place = name_python(older, folder)
        yield Check("SideCar, one file", place, partial(check_sidecar, files, older, folder))
    newest = pythons[0]
    place = name_python(newest, folder)
    for extra in EXTRAS:
        yield Check(f"wheel[{extra}]", place, partial(check_extra, files, newest, extra, folder))
    for add_on in ADD_ONS:
        yield Check(f"dljob-{add_on}", place, partial(check_add_on, files, newest, add_on, folder))
    yield Check("sdist", place, partial(check_sdist, files, newest, folder))
    yield Check("man pages", "man", partial(check_pages, files, folder))
    yield Check("completions", "bash, zsh, fish", partial(check_completions, files, folder))
    yield Check("operator image, arm64", "QEMU", partial(check_arm64, files, folder))


def iter_pythons() -> Iterator[Path]:
    """Yield the Pythons that are here: one for each version, and the distribution's own."""
    found = [each for version in VERSIONS if (each := find_python(version))]
    own = Path("/usr/bin/python3")
    if own.exists() and own.resolve() not in {each.resolve() for each in found}:
        found.append(own)
    yield from found


def find_python(version: str) -> Path | None:
    """Find a Python on the path, or one that pyenv has made; not the one of an environment."""
    places = os.environ.get("PATH", "").split(os.pathsep)
    named = [Path(place, f"python{version}") for place in places if ".venv" not in place]
    made = Path.home().glob(f".pyenv/versions/{version}.*/bin/python{version}")
    for each in (*made, *named):
        # A shim of pyenv is there for each version and starts none that is not chosen.
        if os.access(each, os.X_OK) and "shims" not in each.parts:
            return each
    return None


def name_python(python: Path, folder: Path) -> str:
    return f"{say(python, '--version', home=folder)}, {python}"


def make_environment(python: Path, folder: Path, name: str, *words: object) -> Path:
    """Install something in a fresh environment; return the folder of its programs."""
    place = folder / name
    say(python, "-m", "venv", "--clear", place, home=folder)
    quiet = ("--quiet", "--disable-pip-version-check", "--no-compile")
    # The environments of a run share what was fetched, and nothing else.
    cache = str(folder / "pip")
    say(place / "bin/pip", "install", *quiet, *words, home=folder, PIP_CACHE_DIR=cache)
    return place / "bin"


def count_packages(programs: Path, folder: Path) -> str:
    listed = say(programs / "pip", "list", "--format=freeze", home=folder).splitlines()
    return f"{len(listed)} packages"


# --- the wheel ----------------------------------------------------------------------------


def check_sums(files: Files, folder: Path) -> str:
    say("sha256sum", "--check", "--strict", "SHA256SUMS", home=files.folder)
    listed = (files.folder / "SHA256SUMS").read_text(encoding="utf-8").splitlines()
    assert {line.split()[1] for line in listed} == {
        each.name for each in files.folder.iterdir() if not each.name.startswith("SHA256SUMS")
    }
    return f"{len(listed)} files"


def check_wheel(files: Files, python: Path, folder: Path) -> str:
    programs = make_environment(python, folder, "wheel", files.wheel)
    (folder / "one.csv").write_text(TRACE, encoding="utf-8")
    told = say(programs / "dljob", "--version", home=folder)
    assert files.version in told, told
    say(programs / "dljob", "--help", home=folder)
    say(programs / "python", "-c", "import dljob, dljob.training", home=folder)
    packages = count_packages(programs, folder)
    shutil.rmtree(programs.parent)
    return f"{packages}; {told}"


def check_extra(files: Files, python: Path, extra: str, folder: Path) -> str:
    programs = make_environment(python, folder, "extra", f"{files.wheel}[{extra}]")
    say(programs / "python", "-c", EXTRAS[extra], home=folder)
    if extra in ("sim", "all"):
        (folder / "one.csv").write_text(TRACE, encoding="utf-8")
        say(programs / "dljob", "simulate", "one.csv", "--gpus=4", home=folder)
    packages = count_packages(programs, folder)
    shutil.rmtree(programs.parent)
    return f"{packages}; {EXTRAS[extra]}"


def check_add_on(files: Files, python: Path, add_on: str, folder: Path) -> str:
    """Install the product alone, which refuses the verb by the add-on's name, and then the add-on with it."""
    programs = make_environment(python, folder, "add-on", files.wheel)
    program, verb = ADD_ONS[add_on]
    if verb:
        refused = subprocess.run(
            [programs / "dljob", *verb], capture_output=True, text=True, check=False, cwd=folder
        )
        assert f"dljob-{add_on} is not installed" in refused.stderr, refused.stderr
    wheel = files.find(f"dljob_{add_on}-*.whl")
    links = ("--find-links", files.folder)
    say(programs / "pip", "install", "--quiet", "--no-compile", *links, wheel, home=folder)
    say(programs / "python", "-c", program, home=folder)
    if verb:
        say(programs / "dljob", *verb, home=folder)
    packages = count_packages(programs, folder)
    shutil.rmtree(programs.parent)
    return f"{packages}; {program}"


def check_sdist(files: Files, python: Path, folder: Path) -> str:
    programs = make_environment(
        python, folder, "sdist", files.find(f"dljob-{files.version}.tar.gz")
    )
    pages = list((programs.parent / "share/man/man1").glob("dljob*.1"))
    told = say(programs / "dljob", "--version", home=folder)
    assert files.version in told, told
    shutil.rmtree(programs.parent)
    return f"{told}, {len(pages)} man pages"


def check_sidecar(files: Files, python: Path, folder: Path) -> str:
    shutil.copy(files.find("dljob-sidecar-*.pyz"), folder / "dljob-sidecar.pyz")
    told = say(python, "-I", "dljob-sidecar.pyz", "--version", home=folder)
    say(python, "-I", "dljob-sidecar.pyz", "run", "--help", home=folder)
    return told


# --- pages and completions ----------------------------------------------------------------


def unpack(archive: Path, target: Path) -> Path:
    with tarfile.open(archive) as opened:
        opened.extractall(target, filter="data")
    return target


def check_pages(files: Files, folder: Path) -> str:
    place = unpack(files.find("dljob-man-*.tar.gz"), folder / "man")
    pages = sorted(place.glob("share/man/man1/*.1"))
    if shutil.which("groff") is None:
        raise Unavailable("no groff, which prints man pages")
    page = place / "share/man/man1/dljob-run.1"
    text = say("groff", "-man", "-ww", "-Tascii", page, home=folder)
    assert "SYNOPSIS" in re.sub(r".\x08|\x1b\[\d*m", "", text)
    return f"{len(pages)} pages; groff prints dljob-run(1)"


def check_completions(files: Files, folder: Path) -> str:
    place = unpack(files.find("dljob-completions-*.tar.gz"), folder / "completions")
    loads = {
        "bash": ("bash", "--norc", "-c", f"source {place}/dljob.bash; complete -p dljob"),
        "zsh": ("zsh", "-f", "-c", f"autoload -U compinit; compinit -u; source {place}/_dljob"),
        "fish": ("fish", "--no-config", "-c", f"source {place}/dljob.fish; complete -c dljob"),
    }
    seen = []
    for shell, words in loads.items():
        if shutil.which(shell):
            say(*words, home=folder)
            seen.append(shell)
    assert seen, "no shell"
    return f"loaded by {', '.join(seen)}"


# --- the image that this machine cannot run itself ----------------------------------------


def check_arm64(files: Files, folder: Path) -> str:
    install(("qemu-user-static",))
    archive = Archive(files.images["operator"])
    [image] = [
        each
        for each in archive.document(archive.top())["manifests"]
        if each["platform"]["architecture"] == "arm64"
    ]
    root = folder / "arm64"
    for layer in archive.document(image)["layers"]:
        packed = gzip.decompress(archive.read(layer))
        with tarfile.open(fileobj=io.BytesIO(packed)) as opened:
            opened.extractall(root, filter="tar")
    emulator = "qemu-aarch64-static"
    found = shutil.which(emulator)
    assert found is not None
    shutil.copy(found, root / emulator)
    words = ("chroot", "--userspec=65532:65532", root, f"/{emulator}", "/opt/dljob/bin/python")
    program = "import platform, numpy, cryptography.x509, dljob.operator.operating as _; print(platform.machine())"
    machine = say(*words, "-c", program, home=folder)
    assert machine == "aarch64", machine
    say(*words, "-m", "dljob.operator", "--help", home=folder)
    shutil.rmtree(root)
    return "imports numpy and cryptography, and answers --help"
