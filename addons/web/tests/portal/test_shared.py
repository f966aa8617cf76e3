"""A value that one thread reads for all: others get what is known, and a failure is not sought again by each."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from dljob_web import renewing
from dljob_web.portal.shared import Shared
from dljob_web.renewing import SHARE

LIMIT_S = 240.0
LONG_S = 3600.0
WORK_S = 0.1


class Gated:
    """Gives numbers; the reading waits at a gate."""

    def __init__(self):
        self.asked = 0
        self.began = threading.Event()
        self.gate = threading.Event()
        self.gate.set()

    def __call__(self):
        self.asked += 1
        self.began.set()
        assert self.gate.wait(LIMIT_S)
        return self.asked


def test_many_threads_wait_for_one_first_reading():
    read = Gated()
    read.gate.clear()
    shared = Shared(read, every_s=LONG_S)
    with ThreadPoolExecutor(8) as pool:
        waiting = [pool.submit(shared.get) for _ in range(8)]
        assert read.began.wait(LIMIT_S)
        read.gate.set()
        assert {each.result(LIMIT_S) for each in waiting} == {1}


def test_the_known_value_is_given_while_it_is_read_again():
    read = Gated()
    shared = Shared(read, every_s=0.0)
    assert shared.get() == 1
    read.began.clear()
    read.gate.clear()

    def get_next():
        # The first reading was a little work, too, and so it counts for a moment.
        while shared.get() == 1:
            pass

    with ThreadPoolExecutor(2) as pool:
        reading = pool.submit(get_next)
        assert read.began.wait(LIMIT_S)
        try:
            assert pool.submit(shared.get).result(LIMIT_S) == 1
        finally:
            read.gate.set()
        reading.result(LIMIT_S)
    assert shared.get() >= 2


def test_a_failure_is_known_for_a_while():
    asked = []

    def read():
        asked.append(1)
        raise OSError("does not answer")

    shared = Shared(read, every_s=LONG_S)
    for _ in range(3):
        with pytest.raises(OSError, match="does not answer"):
            shared.get()
    assert len(asked) == 1


def test_work_is_followed_by_a_pause(monkeypatch):
    # A machine that stalls must not outlast the pause.
    monkeypatch.setattr(renewing, "SHARE", SHARE / 100)
    asked = []

    def read():
        asked.append(1)
        work()
        return len(asked)

    shared = Shared(read, every_s=0.0)
    assert [shared.get(), shared.get()] == [1, 1]


def work():
    began = time.thread_time()
    while time.thread_time() - began < WORK_S:
        pass
