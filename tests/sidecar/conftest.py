"""What the tests with real processes share: drivers, and that nothing stays behind."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.sidecar.drivers import Driver, find_processes, wait_until
from tests.sidecar.sidecars import TRAINER, SideCar


@pytest.fixture
def token() -> Iterator[str]:
    """Name this test in the command line of every process of it, and see that none survives."""
    name = f"witness-{uuid.uuid4().hex}"
    yield name
    left = find_processes(name)
    for pid in left:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    assert not left


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
    # What a harness leaves behind it kills in its last moments, or the kernel does.
    with contextlib.suppress(AssertionError):
        wait_until(lambda: not find_processes(token) or None, what="the end of all processes")


@pytest.fixture
def start(tmp_path: Path, token: str) -> Iterator[Callable[..., SideCar]]:
    """Start SideCars; they are ended after the test."""
    started = []

    def begin(*manners: str, command: tuple[str, ...] = (), **how: Any) -> SideCar:
        command = command or (sys.executable, "-S", TRAINER, token, *manners)
        started.append(SideCar(tmp_path, token, *command, **how))
        return started[-1]

    yield begin
    for sidecar in started:
        sidecar.close()
