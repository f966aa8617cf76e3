"""Several processes use one store and some are killed: all that was confirmed is kept."""

import os
import random
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import ExitStack, closing, suppress
from functools import partial
from threading import Timer

import pytest

from dljob.store.opening import open_store
from dljob.store.store import Store, StoreError
from tests.control.store.places import KIND, Place, insist, open_patiently
from tests.control.store.writers import BEGUN, count_pieces, write_piece, writing
from tests.servers.mongo import MongoServer

pytestmark = pytest.mark.processes

WRITERS = ("anna", "ben", "cem")
MOST_PIECES = 190
"""No more than the store keeps for one job, however fast the machine is."""


@pytest.mark.parametrize(
    ("kind", "pieces"), [pytest.param("sqlite", 15, marks=pytest.mark.story), ("mongo", 40)]
)
def test_concurrent_writers_lose_nothing(
    make_place: Callable[[str], Place], kind: str, pieces: int
):
    place = make_place(kind)
    store = place.open()
    with ExitStack() as stack:
        processes = [stack.enter_context(writing(place.address, name, pieces)) for name in WRITERS]
        told = [process.communicate(timeout=240)[0].split() for process in processes]
    assert [lines[-1] for lines in told] == [str(pieces)] * len(WRITERS)
    for name in WRITERS:
        assert count_pieces(store, name) == (pieces, pieces)
    # Each observation was folded into the result of the one before.
    assert store.revisions() == {KIND: pieces * len(WRITERS)}


def confirmed(process: subprocess.Popen[str], until: int, pause: float) -> int:
    """Kill the writer a moment after ``until`` confirmed pieces; return their number."""
    assert process.stdout is not None
    last = 0
    assert process.stdout.readline().strip() == BEGUN
    while last < until:
        last = int(process.stdout.readline())
    # The point of the kill is drawn.
    time.sleep(pause)
    process.kill()
    rest = process.stdout.read().split()
    return int(rest[-1]) if rest else last


@pytest.mark.parametrize("seed", range(2))
def test_killed_writer_leaves_whole_pieces(make_place, seed: int):
    chance = random.Random(seed)
    place: Place = make_place("sqlite")
    for life in range(6):
        name = f"life-{life}"
        # There is no file at first, so the first lives may end while it is made.
        until = chance.choice([0, 0, 1, 5])
        with writing(place.address, name, MOST_PIECES) as process:
            told = confirmed(process, until, chance.uniform(0.0, 0.05))
        store = open_patiently(place.address)
        observations, entries = count_pieces(store, name)
        # The last piece may be there or not, but only as a whole.
        assert told <= entries <= observations <= told + 1
        for number in range(1, observations + 2):
            write_piece(store, name, number)
        assert count_pieces(store, name) == (observations + 1, observations + 1)
        store.close()


def write_until_it_fails(store: Store, name: str, killed_from: int, kill: Timer) -> int:
    """Write pieces, kill the server from this one on, and return the piece that failed."""
    for number in range(1, killed_from):
        insist(partial(write_piece, store, name, number))
    kill.start()
    number = killed_from
    with suppress(StoreError):
        while True:
            if number == MOST_PIECES:
                kill.join(timeout=60)
            write_piece(store, name, number)
            number += 1
    return number


def test_killed_server_has_all_it_confirmed(server: MongoServer):
    chance = random.Random(0)
    with (
        # More than a busy machine delays an answer.
        closing(open_store(server.url("dljob"), environment={}, patience_seconds=10.0)) as store,
        closing(open_patiently(server.url("dljob"))) as checker,
    ):
        for life in range(4):
            # A fast machine writes many pieces, so the kill is drawn by pieces, and each life has a name.
            name = f"life-{life}"
            kill = Timer(chance.uniform(0.0, 0.02), os.kill, (server.pid, signal.SIGKILL))
            failed = write_until_it_fails(store, name, chance.randint(5, 60), kill)
            kill.join(timeout=60)
            server.kill()
            server.start()
            observations, entries = count_pieces(checker, name)
            assert failed - 1 <= entries <= observations <= failed
            # A client that does not know whether a piece was written repeats it.
            write_piece(checker, name, failed)
            assert count_pieces(checker, name) == (failed, failed)
