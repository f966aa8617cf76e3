"""Several processes at one store, some of which are killed: nothing that was confirmed is lost."""

import os
import random
import signal
import subprocess
import time
from contextlib import ExitStack, suppress
from threading import Timer

import pytest

from dlcore.model import JobId
from dlstore.opening import open_store
from dlstore.store import Store, StoreError
from tests.control.store.conftest import WITH_SERVER
from tests.control.store.places import KIND, Place, open_patiently
from tests.control.store.writers import BEGUN, count_pieces, write_piece, writing
from tests.servers.mongo import MongoServer

# Each process takes a while to come up.
pytestmark = pytest.mark.slow

WRITERS = ("anna", "ben", "cem")


@pytest.mark.parametrize("pieces", [40])
def test_processes_that_write_at_once_lose_nothing(shared_place: Place, pieces: int):
    store = shared_place.open()
    with ExitStack() as stack:
        address = shared_place.address
        processes = [stack.enter_context(writing(address, name, pieces)) for name in WRITERS]
        told = [process.communicate()[0].split() for process in processes]
    assert [lines[-1] for lines in told] == [str(pieces)] * len(WRITERS)
    for name in WRITERS:
        assert count_pieces(store, name) == (pieces, pieces)
    # Each observation was folded into what the one before had left.
    assert store.revisions() == {KIND: pieces * len(WRITERS)}


def confirmed(process: subprocess.Popen[str], until: int, pause: float) -> int:
    """Kill the writer a moment after it has confirmed so many pieces; return how many it did."""
    assert process.stdout is not None
    last = 0
    assert process.stdout.readline().strip() == BEGUN
    while last < until:
        last = int(process.stdout.readline())
    # The point of the kill is drawn, and nothing is waited for.
    time.sleep(pause)
    process.kill()
    rest = process.stdout.read().split()
    return int(rest[-1]) if rest else last


@pytest.mark.parametrize("seed", range(2))
def test_a_writer_that_is_killed_leaves_whole_pieces(make_place, seed: int):
    chance = random.Random(seed)
    place: Place = make_place("sqlite")
    for life in range(6):
        name = f"life-{life}"
        # At first there is no file yet, so the first lives may end while it is made.
        until = chance.choice([0, 0, 1, 5])
        # No more than the store keeps of one kind, however fast the machine is.
        with writing(place.address, name, 190) as process:
            told = confirmed(process, until, chance.uniform(0.0, 0.05))
        store = open_patiently(place.address)
        observations, entries = count_pieces(store, name)
        # What was under way may be there or not, but then as a whole.
        assert told <= entries <= observations <= told + 1
        for number in range(1, observations + 2):
            write_piece(store, name, number)
        assert count_pieces(store, name) == (observations + 1, observations + 1)
        store.close()


def write_until_it_fails(store: Store, first: int) -> int:
    """Write pieces from this number on; return the one that failed."""
    number = first
    with suppress(StoreError):
        while True:
            write_piece(store, "writer", number)
            number += 1
    return number


@WITH_SERVER
def test_a_server_that_is_killed_has_what_it_confirmed(server: MongoServer):
    chance = random.Random(0)
    store = open_store(server.url("dljob"), environment={})
    checker = open_patiently(server.url("dljob"))
    failed = 0
    for _ in range(4):
        kill = Timer(chance.uniform(0.2, 0.5), os.kill, (server.pid, signal.SIGKILL))
        kill.start()
        failed = write_until_it_fails(store, failed + 1)
        kill.join()
        server.kill()
        server.start()
        observations, entries = count_pieces(checker, "writer")
        assert failed - 1 <= entries <= observations <= failed
        # Whoever does not know whether a piece was written writes it again.
        write_piece(checker, "writer", failed)
        assert count_pieces(checker, "writer") == (failed, failed)
    store.close()
    checker.close()


@WITH_SERVER
def test_a_server_that_hangs_costs_a_bounded_time(server: MongoServer):
    store = open_store(server.url("dljob"), environment={}, patience_seconds=10.0)
    write_piece(store, "writer", 1)
    server.freeze()
    began = time.monotonic()
    with pytest.raises(StoreError, match="does not answer"):
        store.history(JobId("writer"))
    # Generous: what matters is that it does not wait for ever.
    assert time.monotonic() - began < 100.0
    server.thaw()
    assert count_pieces(store, "writer") == (1, 1)
    store.close()
