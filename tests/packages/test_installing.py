"""The wheel and the sdist, in an environment with nothing else."""

import json
import shutil
import signal
import tempfile
import zipfile
from importlib import metadata
from pathlib import Path

import pytest

from dljob.local.folders import Folders
from tests.packages.distributions import LONGEST_S, Bare, Distributions
from tests.sidecar.drivers import wait_until

# pip fetches numpy and scipy, and a real `dljob up` runs a job.
pytestmark = [pytest.mark.slow, pytest.mark.processes, pytest.mark.timeout(2700)]

HEAVY = {"cryptography", "kopf", "kubernetes", "matplotlib", "pymongo", "scipy"}
"""Only extras bring these packages."""

TRACE = "job_id,submit_time_s,duration_s,num_gpus\n0,0,60,1\n"
JOB = "import dljob.training, os; print('trained with', os.environ['CUDA_VISIBLE_DEVICES'])"


@pytest.fixture
def distributions(tmp_path):
    return Distributions.build(tmp_path / "dist")


@pytest.fixture
def bare(distributions, tmp_path):
    """An environment into which the wheel is installed, and a home of its own."""
    (tmp_path / "home").mkdir()
    environment = Bare(tmp_path / "environment", tmp_path / "home")
    environment.install(distributions.wheel)
    yield environment
    # It is 230 MB. A SideCar that is about to end may still write there.
    shutil.rmtree(tmp_path / "environment", ignore_errors=True)


@pytest.fixture
def state():
    """A state folder. Sockets need short paths, which those of pytest are not."""
    folder = Path(tempfile.mkdtemp(prefix="dljob-test-"))
    yield folder
    # A SideCar that is about to end removes its own files, too.
    shutil.rmtree(folder, ignore_errors=True)


def contents_of(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def test_the_sdist_makes_the_same_wheel(distributions, tmp_path):
    built = contents_of(distributions.wheel)
    assert contents_of(distributions.wheel_of_sdist(tmp_path / "wheel")) == built
    assert sum("/share/man/man1/dljob" in name for name in built) > 30


def test_a_bare_environment_has_everything_but_the_extras(bare, distributions, state):
    # One test, because each of the processes that share the tests would install the wheel again.
    check_that_no_heavy_package_came(bare)
    check_that_one_name_came(bare)
    for program in ("dljob", "kubectl-dljob"):
        check_that_it_helps(bare, program)
    check_that_a_trace_is_played(bare)
    wheel = distributions.wheel
    add_on = wheel.with_name(wheel.name.replace("dljob", "dljob_lab"))
    for words, extra in LACKING.items():
        lacks = f"{wheel}[{extra}]" if extra else add_on
        check_that_the_remedy_is_named(bare, words, f"pip install '{lacks}'")
    asked = bare.run("python", "-c", ASK_CLUSTER).stdout
    assert asked == f"pip install '{distributions.wheel}[cluster]'\n"
    check_that_a_job_trains(bare, state)


LACKING = {
    ("simulate", "one.csv", "--plot"): "plots",
    ("demo",): "",
    ("get", "--context", "any"): "cluster",
    ("simulate", "one.csv", "--predictor", "marginal-utility"): "",
}
"""Commands, and the extra that each lacks; empty where it lacks the add-on dljob-lab."""

ASK_CLUSTER = """
import dljob
try:
    dljob.connect(context="any")
except dljob.MissingExtra as refused:
    print(refused.problems[0].remedy)
"""


def check_that_no_heavy_package_came(bare: Bare) -> None:
    listed = json.loads(bare.run("pip", "list", "--format", "json").stdout)
    names = {each["name"].lower() for each in listed}
    assert "dljob" in names
    assert names & HEAVY == set()


def check_that_one_name_came(bare: Bare) -> None:
    """The wheel itself adds ``dljob`` and its metadata beside the packages of other projects."""
    names = "{each.parts[0] for each in metadata.files('dljob')} - {'..'}"
    told = bare.run("python", "-c", f"from importlib import metadata; print(*sorted({names}))")
    assert told.stdout.split() == ["dljob", f"dljob-{metadata.version('dljob')}.dist-info"]


def check_that_it_helps(bare: Bare, program: str) -> None:
    told = bare.run(program, "--help")
    assert (told.returncode, told.stderr) == (0, "")
    assert "usage" in told.stdout.lower()


def check_that_a_trace_is_played(bare: Bare) -> None:
    trace = str(bare.home / "one.csv")
    (bare.home / "one.csv").write_text(TRACE, encoding="utf-8")
    play = f"import dljob; print(dljob.simulate({trace!r}, cluster=8)[0].score.avg_jct_s)"
    told = bare.run("python", "-c", play)
    assert (told.returncode, told.stderr) == (0, "")
    played = bare.run("dljob", "simulate", trace, "--gpus", "8", "-o", "json")
    assert played.returncode == 0, played.stderr
    assert json.loads(played.stdout)[0]["avg_jct_s"] == pytest.approx(float(told.stdout))


def check_that_the_remedy_is_named(bare: Bare, words: tuple[str, ...], remedy: str) -> None:
    told = bare.run("dljob", *words)
    assert told.returncode == 1
    [line] = told.stderr.splitlines()
    assert line.endswith(remedy)


def check_that_a_job_trains(bare: Bare, state: Path) -> None:
    log = state / "up.log"
    up = bare.start(log, "dljob", "up", "--state", state, "--virtual-gpus", "1")
    try:
        wait_until(Folders(state).socket.exists, what="the socket of dljob up")
        run = ("run", "--state", state, "--name", "tiny", "--", "python", "-c", JOB)
        submitted = bare.run("dljob", *run)
        assert submitted.returncode == 0, submitted.stderr
        goal = ("--for", "Completed", "--timeout", LONGEST_S)
        waited = bare.run("dljob", "wait", "tiny", "--state", state, *goal)
        logs = bare.run("dljob", "logs", "tiny", "--state", state)
        assert waited.returncode == 0, waited.stderr + logs.stdout + logs.stderr
        assert "trained with 0" in logs.stdout
    finally:
        up.send_signal(signal.SIGTERM)
        try:
            up.wait(LONGEST_S)
        finally:
            up.kill()
