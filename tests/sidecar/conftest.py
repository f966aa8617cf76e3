"""Fixtures of the tests with real processes: drivers, and a check that no process stays behind."""

from __future__ import annotations

import contextlib
import gc
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.sidecar.drivers import Driver, find_processes, wait_until, witnessed
from tests.sidecar.sidecars import TRAINER, SideCar
from tests.sidecar.standins import StandIn, build_nvml, library_path


@pytest.fixture(scope="module", autouse=True)
def _leave_no_transports() -> Iterator[None]:
    """Let a connection that was never closed fail its own module, and none that comes later."""
    yield
    gc.collect()


@pytest.fixture
def token() -> Iterator[str]:
    """Name this test in the command line of every process of it, and see that none survives."""
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
    # A harness kills the processes that it leaves behind in its last moments, or the kernel does.
    with contextlib.suppress(AssertionError):
        wait_until(lambda: not find_processes(token) or None, what="the end of all processes")


@pytest.fixture
def start(tmp_path: Path, token: str) -> Iterator[Callable[..., SideCar]]:
    """Start SideCars; they are ended after the test."""
    started = []

    def begin(*manners: str, command: tuple[str, ...] = (), name: str = "", **how: Any) -> SideCar:
        """Start the SideCar of one job; several jobs on one machine need a ``name`` each."""
        command = command or (sys.executable, "-S", TRAINER, token, *manners)
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        started.append(SideCar(folder, token, *command, **how))
        return started[-1]

    yield begin
    for sidecar in started:
        sidecar.close()


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where NVML and CUDA of a machine that does not exist are."""
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
    # A SideCar that still waits for an answer shall be able to end.
    (folder / "hang").unlink(missing_ok=True)
