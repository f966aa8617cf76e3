"""
Common rules for all tests: the draws of hypothesis, and the lower limit of the coverage.

Hypothesis draws the same examples every time, because a check that fails by chance is soon
ignored. To look for new ones: ``HYPOTHESIS_PROFILE=thorough pytest tests``.
"""

import json
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import coverage
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers
from hypothesis.internal.constants_ast import Constants

from dljob.local.folders import Folders
from tests.running import watching
from tests.servers.controlplane import ControlPlane
from tests.servers.namespaces import make_namespace, remove_namespace, wait_for_ends

# How fast the machine is today is no law of ours: neither profile has a deadline.
settings.register_profile(
    "steady", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile(
    "thorough",
    deadline=None,
    max_examples=2000,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
PROFILE = os.environ.get("HYPOTHESIS_PROFILE", "steady")
settings.load_profile(PROFILE)
if PROFILE == "steady":
    # Else the examples would depend on the constants in all modules that this process has loaded, and so on
    # the tests before, and on each line of the code.
    providers._get_local_constants = Constants


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--min-branches",
        type=float,
        metavar="PERCENT",
        help="fail if a smaller share of the measured branches was taken (needs --cov)",
    )
    parser.addoption(
        "--long", action="store_true", help="run only what takes hours: the tests marked long"
    )


@pytest.fixture(scope="session", autouse=True)
def _leave_no_sockets(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Remove the sockets of each ``dljob up`` that was killed, where its state folder has too long a path."""
    yield
    for jobs in tmp_path_factory.getbasetemp().rglob("jobs"):
        shutil.rmtree(Folders(jobs.parent).sockets, ignore_errors=True)


def pytest_configure(config: pytest.Config) -> None:
    watching.install(config)
    # A background process of a shell ignores Ctrl-C, and so would all processes that tests start.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


# pytest-cov begins to measure when it is loaded, where it does not know yet that it is in one of several
# processes, and there once more when the session starts. The first measurement would be thrown away, and
# would go on where the second one pauses: all that is not measured would take five times as long.
@pytest.hookimpl(tryfirst=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    measuring = session.config.pluginmanager.getplugin("_cov")
    if measuring is not None and hasattr(session.config, "workerinput"):
        measuring.cov_controller.pause()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    wanted = bool(config.getoption("--long"))
    left_out = [item for item in items if ("long" in item.keywords) != wanted]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if ("long" in item.keywords) == wanted]


@pytest.fixture
def passable() -> Iterator[Path]:
    """A folder through which others may pass. Folders above ``tmp_path`` are closed by each pytest that begins meanwhile."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o711)
        yield Path(name)


@pytest.fixture(scope="session")
def control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A real control plane of Kubernetes, for all tests of this process that leave it running."""
    with ControlPlane(tmp_path_factory.mktemp("control-plane")) as plane:
        yield plane
        with plane.api() as api:
            wait_for_ends(api)


@pytest.fixture
def namespace(control_plane: ControlPlane) -> Iterator[str]:
    with control_plane.api() as api:
        name = make_namespace(api)
        yield name
        remove_namespace(api, name)


# pytest-cov's own floor counts lines and branches together, which hides a branch never taken behind
# many lines that were. This hook holds a floor for branches, and no step after pytest does, because
# a developer who runs the tests reads the last line.
def pytest_sessionfinish(session: pytest.Session) -> None:
    floor = session.config.getoption("--min-branches")
    # With several processes this runs in each of them; only the first one has the sum.
    if floor is None or hasattr(session.config, "workerinput"):
        return
    if not session.config.pluginmanager.hasplugin("_cov"):
        raise pytest.UsageError("--min-branches: nothing was measured; add --cov")
    taken = measured_branches()
    session.config.stash[TAKEN] = taken
    if taken < floor and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    if (taken := config.stash.get(TAKEN, None)) is not None:
        floor = config.getoption("--min-branches")
        verdict = "enough" if taken >= floor else "FAILED, too few"
        terminalreporter.write_line(f"branches taken: {taken:.2f} % of {floor:g} %, {verdict}")


TAKEN = pytest.StashKey[float]()


def measured_branches() -> float:
    """Return the share of branches taken, in percent, from the data that pytest-cov saved."""
    measurement = coverage.Coverage()
    measurement.load()
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "coverage.json"
        measurement.json_report(outfile=str(report))
        totals = json.loads(report.read_text(encoding="utf-8"))["totals"]
    # Both are missing where no test came near the measured code.
    return 100.0 * float(totals.get("covered_branches", 0)) / float(totals.get("num_branches") or 1)
