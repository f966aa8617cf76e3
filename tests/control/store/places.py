"""Places for the stores of the tests, and short ways to make their contents."""

import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, TypeVar
from uuid import uuid4

from hypothesis import strategies as st

from dljob.core.model import NodeName, Placement
from dljob.core.profiles import AccuracySeen, CostSeen, CostTerm, JobType, Observation, SpeedSeen
from dljob.core.recording.record import Decided
from dljob.store.opening import open_store
from dljob.store.rows import RecordRow
from dljob.store.store import USUAL_BOUNDS, Bounds, Store, StoreUnavailableError
from dljob_wire.messages import Shape
from tests.control.store.memory import MemoryStore

KIND = JobType("resnet50", "imagenet", 256)
OTHER = JobType("bert", "", 32)
SHAPE = Shape(4, 1, "V100")
AWAY = StoreUnavailableError("memory", "does not answer", "wait")
T = TypeVar("T")


PATIENCE_SECONDS = 60.0
"""A busy machine must not fail these tests."""


def open_patiently(address: str, bounds: Bounds = USUAL_BOUNDS) -> Store:
    return open_store(address, environment={}, bounds=bounds, patience_seconds=PATIENCE_SECONDS)


def insist(do: Callable[[], T]) -> T:
    """Call a server that is up, although a busy machine may delay its answer beyond the store's patience."""
    end = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            return do()
        except StoreUnavailableError:
            if time.monotonic() > end:
                raise


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Another process that has begun to write to a file."""
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("BEGIN IMMEDIATE")
        yield
        db.execute("ROLLBACK")


class Place:
    """A place for a store, which can be opened several times."""

    address = "memory"
    """The address by which other processes can open it."""

    def __init__(self) -> None:
        self._opened: list[Store] = []

    def open(self, bounds: Bounds = USUAL_BOUNDS) -> Store:
        store = self._open(bounds)
        self._opened.append(store)
        return store

    def _open(self, bounds: Bounds) -> Store:
        return open_patiently(self.address, bounds)

    def close(self) -> None:
        for store in self._opened:
            store.close()


class MemoryPlace(Place):
    """One store in memory, however often it is opened."""

    def __init__(self) -> None:
        super().__init__()
        self._store: MemoryStore | None = None

    def _open(self, bounds: Bounds) -> Store:
        self._store = self._store or MemoryStore(bounds)
        return self._store


class AddressPlace(Place):
    def __init__(self, address: str) -> None:
        super().__init__()
        self.address = address


def speed_seen(speed: float = 5.0, *, shape: Shape = SHAPE, at: float = 0.0) -> SpeedSeen:
    return SpeedSeen(shape, speed, duration_s=60.0, at=at)


def make_entry(job: str = "job", at: float = 0.0, *, name: str = "", **rest: Any) -> RecordRow:
    rest.setdefault("step", "start")
    rest.setdefault("new", Placement.of({NodeName("n1"): [0, 1]}, "V100"))
    return RecordRow.of(Decided(job=job, at=at, **rest), name or uuid4().hex)


# --- possible observations ------------------------------------------------------------------

gpu_types = st.sampled_from(["", "V100", "NVIDIA H200", "P100+V100"])
shapes = st.builds(Shape, st.integers(1, 64), st.integers(1, 8), gpu_types)
observations: st.SearchStrategy[Observation] = st.one_of(
    st.builds(
        SpeedSeen, shapes, st.floats(1e-6, 1e6), st.just(1e9), st.floats(0.0, 2e9), st.booleans()
    ),
    st.builds(AccuracySeen, st.floats(0.0, 1e9), st.floats(-1e6, 1e6)),
    st.builds(CostSeen, st.sampled_from(CostTerm), st.floats(0.0, 1e4), st.integers(0, 64)),
)
