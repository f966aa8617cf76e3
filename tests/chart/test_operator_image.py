"""``Dockerfile.operator``: the operator, the extender and the command, run by an unprivileged user."""

import subprocess
from collections.abc import Iterator

import pytest

from tests.servers.binaries import entered
from tests.servers.images import Images
from tests.sidecar.drivers import ROOT
from tests.sidecar.engines import Buildah

# With the tests on real nodes, because its build takes minutes.
pytestmark = [pytest.mark.nodes, pytest.mark.slow]

USER = 65532


@pytest.fixture(scope="module")
def engine() -> Iterator[Buildah]:
    """An engine for the image, which is built only from the files that its Dockerfile names."""
    with entered(Images.in_cache().operator_built()) as built:
        yield built


def run(engine, *command):
    """Run a command as an unprivileged user with a read-only root file system."""
    container = engine.prepare(USER, {})
    return subprocess.run(
        [*container, *command], capture_output=True, text=True, check=False, timeout=240.0
    )


def test_image_is_unprivileged_and_labelled(engine):
    told = engine.describe()
    assert told.user == f"{USER}:{USER}"
    assert told.command == ["python", "-m", "dljob.operator"]
    assert told.labels["org.opencontainers.image.licenses"] == "Apache-2.0"


@pytest.mark.parametrize(
    ("command", "says"),
    [
        (["python", "-m", "dljob.operator", "--help"], "Run the jobs of a cluster until a signal"),
        (["python", "-m", "dljob_gangs", "--help"], "--make-tls"),
        (["python", "-m", "dljob.operator.uninstalling", "--help"], "Delete all jobs"),
        (["dljob", "policies"], "adaptive"),
        (["kubectl-dljob", "--help"], "submit"),
    ],
    ids=lambda value: value[-2] if isinstance(value, list) else "",
)
def test_programs_work_without_a_writable_root(engine, command, says):
    ran = run(engine, *command)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert says in ran.stdout


def test_operator_without_a_cluster_says_so(engine):
    ran = run(engine, *engine.describe().command)
    assert ran.returncode != 0
    assert "no cluster" in ran.stderr


def test_image_has_no_development_packages(engine):
    program = (
        "import importlib.metadata as m; print(*sorted(d.name.lower() for d in m.distributions()))"
    )
    packages = run(engine, "python", "-c", program).stdout.split()
    locked = (ROOT / "requirements.operator.lock").read_text().splitlines()
    names = {line.partition("==")[0] for line in locked if "==" in line}
    assert {"dljob", "kopf", "pymongo"} <= set(packages)
    ours = {"dljob", "dljob-gangs", "dljob-lab", "dljob-web"}
    assert {each.replace("_", "-") for each in packages} - names == ours


def test_image_holds_the_late_imports_of_policies_of_papers(engine):
    imports = "scipy.optimize, scipy.sparse, scipy.special, dljob_lab.policies.elastic.ones"
    assert run(engine, "python", "-c", f"import {imports}").stderr == ""
    live = (
        "from dljob.known_policies import list_live, read_live_policy as read;"
        "print(*(read(each).name for each in list_live()))"
    )
    names = run(engine, "python", "-c", live).stdout.split()
    assert {"afs-l", "afs-p", "dragon", "ones", "sia"} <= set(names)


def test_programs_are_read_only(engine):
    program = "import dljob.operator, os; print(os.access(dljob.operator.__file__, os.W_OK))"
    assert run(engine, "python", "-c", program).stdout == "False\n"


def test_image_packages_are_the_tested_ones():
    def versions(name):
        lines = (ROOT / name).read_text().splitlines()
        return {line.split(" ")[0] for line in lines if "==" in line}

    ours = versions("requirements.operator.lock")
    assert len(ours) > 20
    assert ours <= versions("requirements.lock")
    assert versions("requirements.build.lock") <= versions("requirements.lock")
