"""``make release``: its files, their checksums and signature, and the manifest for krew."""

import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
import yaml

from tests.packages.distributions import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.processes, pytest.mark.timeout(1800)]

ADDRESS = "https://example.org/dljob/v0"


def run(*words: object, folder: Path, given: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [*map(str, words)], cwd=folder, input=given, capture_output=True, check=False, timeout=900.0
    )


def verify(folder: Path, signers: Path) -> int:
    """Check the signature as users do; return the exit status."""
    words = ("ssh-keygen", "-Y", "verify", "-n", "dljob", "-f", signers, "-I", "releases")
    listed = (folder / "SHA256SUMS").read_bytes()
    return run(*words, "-s", "SHA256SUMS.sig", folder=folder, given=listed).returncode


def make(folder: Path, *options: object) -> str:
    """Make a release without its images; return its checksums."""
    words = ("--output", folder, "--no-images", *options)
    done = run(sys.executable, ROOT / "scripts" / "release", *words, folder=ROOT)
    assert done.returncode == 0, done.stderr
    return (folder / "SHA256SUMS").read_text(encoding="utf-8")


def test_a_release_is_whole_signed_and_the_same_when_it_is_made_again(tmp_path):
    key, folder = tmp_path / "key", tmp_path / "release"
    made = run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key, folder=tmp_path)
    assert made.returncode == 0, made.stderr
    sums = make(folder, "--key", key, "--address", ADDRESS)
    check_files(folder)
    check_signature(folder, tmp_path)
    check_krew(folder)
    assert make(tmp_path / "again", "--address", ADDRESS) == sums


def test_another_version_is_refused_before_anything_is_made(tmp_path):
    words = (ROOT / "scripts" / "release", "--output", tmp_path / "none", "--version", "9.9.9")
    done = run(sys.executable, *words, folder=ROOT)
    assert done.returncode == 1
    assert b"scripts/write-version 9.9.9 sets it" in done.stderr
    assert not (tmp_path / "none").exists()


def check_files(folder: Path) -> None:
    names = {re.sub(r"-\d+\.\d+\.\d+", "-V", file.name) for file in folder.iterdir()}
    assert names == {
        *("dljob-V-py3-none-any.whl", "dljob-V.tar.gz", "dljob-sidecar-V.pyz"),
        *(f"dljob_{name}-V-py3-none-any.whl" for name in ("gangs", "lab", "mcp", "web")),
        *("dljob-man-V.tar.gz", "dljob-completions-V.tar.gz"),
        *("kubectl-dljob-V.tar.gz", "dljob.yaml", "SHA256SUMS", "SHA256SUMS.sig"),
    }
    assert run("sha256sum", "--check", "--strict", "SHA256SUMS", folder=folder).returncode == 0
    listed = (folder / "SHA256SUMS").read_text(encoding="utf-8").split()[1::2]
    assert sorted({*listed, "SHA256SUMS", "SHA256SUMS.sig"}) == sorted(
        file.name for file in folder.iterdir()
    )


def check_signature(folder: Path, place: Path) -> None:
    """The key that signed is accepted; another one, and other checksums, are not."""
    signers, others = place / "signers", place / "others"
    public = (place / "key.pub").read_text(encoding="utf-8")
    signers.write_text(f"releases {public}", encoding="utf-8")
    run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", place / "other", folder=place)
    other = (place / "other.pub").read_text(encoding="utf-8")
    others.write_text(f"releases {other}", encoding="utf-8")
    assert verify(folder, signers) == 0
    assert verify(folder, others) != 0
    sums = folder / "SHA256SUMS"
    kept = sums.read_bytes()
    sums.write_bytes(kept.replace(b"0", b"1", 1))
    assert verify(folder, signers) != 0
    sums.write_bytes(kept)


def check_krew(folder: Path) -> None:
    """Hold krew's own rules for a manifest, and that the archive is the one that it names."""
    file = folder / "dljob.yaml"
    manifest = yaml.safe_load(file.read_text(encoding="utf-8"))
    assert manifest["apiVersion"] == "krew.googlecontainertools.github.com/v1alpha2"
    assert manifest["kind"] == "Plugin"
    assert manifest["metadata"]["name"] == file.stem
    spec = manifest["spec"]
    assert re.fullmatch(r"v\d+\.\d+\.\d+", spec["version"])
    assert len(spec["shortDescription"].splitlines()) == 1
    # krew's index shows these in columns, and its validator warns of longer lines.
    for field, longest in (("shortDescription", 70), ("description", 80), ("caveats", 80)):
        assert max(map(len, spec[field].splitlines())) <= longest, field
    # Each machine is selected by one platform at most, by the two keys that krew knows.
    selected = [each["selector"]["matchLabels"] for each in spec["platforms"]]
    assert all(set(labels) == {"os", "arch"} for labels in selected)
    assert len({tuple(sorted(labels.items())) for labels in selected}) == len(selected) > 0
    lines = (folder / "SHA256SUMS").read_text(encoding="utf-8").splitlines()
    sums = {name: value for value, name in (line.split() for line in lines)}
    for platform in spec["platforms"]:
        assert set(platform) == {"selector", "uri", "sha256", "bin"}
        name = platform["uri"].removeprefix(f"{ADDRESS}/")
        assert re.fullmatch(r"[0-9a-f]{64}", platform["sha256"])
        assert sums[name] == platform["sha256"]
        with tarfile.open(folder / name) as archive:
            program = archive.getmember(platform["bin"])
            assert program.mode == 0o755
            archive.extract(program, folder, filter="data")
        check_launcher(folder / program.name)


def check_launcher(program: Path) -> None:
    """It names its remedy on a machine without a recent Python."""
    tools = program.parent / "tools"
    tools.mkdir(exist_ok=True)
    for tool in ("dirname", "readlink", "mkdir", "flock"):
        found = shutil.which(tool)
        assert found is not None
        (tools / tool).unlink(missing_ok=True)
        (tools / tool).symlink_to(found)
    done = subprocess.run(
        ["/bin/sh", program, "get"],
        env={"PATH": str(tools), "HOME": str(program.parent)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60.0,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "kubectl dljob needs Python 3.11 or newer; put one on PATH\n"
