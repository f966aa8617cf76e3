"""Fixtures of the tests with real processes: drivers, and a check that no process stays behind."""

from __future__ import annotations

import contextlib
import gc
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.sidecar.drivers import Driver, find_processes, wait_until, witnessed
from tests.sidecar.reshapes import Job
from tests.sidecar.sidecars import TRAINER, SideCar
from tests.sidecar.standins import StandIn, build_nvml, library_path


@pytest.fixture(scope="module", autouse=True)
def _leave_no_transports() -> Iterator[None]:
    """A connection that was never closed fails its own module, not a later one."""
    yield
    gc.collect()


@pytest.fixture
def token() -> Iterator[str]:
    """Name this test in the command line of each of its processes; none may survive it."""
    with witnessed() as name:
        yield name


@pytest.fixture
def drive(tmp_path: Path, token: str) -> Iterator[Callable[..., Driver]]:
    """Make drivers; they are ended after the test."""
    drivers = []

    def make(*manners: str, **training: Any) -> Driver:
        training.setdefault("command", [sys.executable, "-S", TRAINER, token, *manners])
        drivers.append(Driver(tmp_path, token, **training))
        return drivers[-1]

    yield make
    for driver in drivers:
        driver.close()
    # The harness or the kernel kills the remaining processes at its end.
    with contextlib.suppress(AssertionError):
        wait_until(lambda: not find_processes(token) or None, what="the end of all processes")


@pytest.fixture
def start(tmp_path: Path, token: str) -> Iterator[Callable[..., SideCar]]:
    """Start SideCars; they are ended after the test."""
    started = []

    def begin(
        *manners: str, command: Sequence[str] = (), name: str = "", waits: bool = True, **how: Any
    ) -> SideCar:
        """Start the SideCar of one job; several jobs on one machine need a ``name`` each."""
        command = command or (sys.executable, "-S", TRAINER, token, *manners)
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        started.append(SideCar(folder, token, *command, **how))
        if waits:
            started[-1].wait_ready()
        return started[-1]

    yield begin
    for sidecar in started:
        sidecar.close()


@pytest.fixture
def make_job(tmp_path: Path, token: str) -> Iterator[Callable[..., Job]]:
    """Make jobs that save checkpoints; they are ended after the test."""
    jobs: list[Job] = []

    def make(shape: str, **options: Any) -> Job:
        jobs.append(Job(tmp_path, token, shape, **options))
        return jobs[-1]

    yield make
    for job in jobs:
        job.sidecar.close()


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the NVML and CUDA of a machine that does not exist."""
    return build_nvml(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def driver(tmp_path: Path, library: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StandIn]:
    """Let SideCars and trainings of this test load that NVML and that CUDA."""
    pytest.importorskip("pynvml", reason="nvidia-ml-py is not installed")
    folder = tmp_path / "driver"
    folder.mkdir()
    monkeypatch.setenv("STANDIN_NVML", str(folder))
    monkeypatch.setenv("LD_LIBRARY_PATH", library_path(library))
    driver = StandIn(folder)
    yield driver
    # Otherwise a SideCar that still waits for an answer could not end.
    (folder / "hang").unlink(missing_ok=True)
