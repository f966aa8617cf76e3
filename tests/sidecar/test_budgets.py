"""Spare interpreters stay within their memory, and split commands as the interpreter does."""

from __future__ import annotations

import time

from dljob_sidecar.warm import spare
from dljob_sidecar.warm.budgets import FIRST_GUESS_BYTES, Budget, read_free_bytes
from dljob_sidecar.warm.warming import Script, take_apart

MIB = 1 << 20


def budget(free_mib, given_mib=0):
    return Budget(given_mib * MIB, lambda: free_mib * MIB)


def test_half_of_free_memory_is_for_spares():
    some = budget(4096)
    assert some.allow(8, ready=0) == (8, "")
    assert some.limit_bytes == 2048 * MIB
    most, why = some.allow(9, ready=0)
    assert most == 2048 * MIB // FIRST_GUESS_BYTES == 8
    assert why.startswith("9 spare interpreters are needed and 8 fit into 2048 MiB")
    assert "half of the free memory" in why


def test_spare_size_is_learnt():
    some = budget(1024)
    some.learn(100 * MIB)
    assert some.allow(9, ready=0)[0] == 5
    # Of the memory that is in use, a part is theirs.
    assert some.allow(9, ready=4)[0] == 7


def test_job_may_limit_spare_memory():
    some = budget(100_000, given_mib=512)
    most, why = some.allow(4, ready=0)
    assert most == 2
    assert "spareMemoryBytes" in why


def test_unknown_free_memory_means_no_limit():
    some = Budget(0, lambda: -1)
    assert some.allow(128, ready=0) == (128, "")
    assert some.limit_bytes == 0


def test_free_memory_is_readable():
    assert 0 < read_free_bytes() < 1 << 50


def test_warm_rank_waits_for_the_first_node(monkeypatch):
    # The pauses, and not the time that passes: a busy machine adds to that.
    pauses: list[float] = []
    monkeypatch.setattr(time, "sleep", pauses.append)
    for environment in (
        {"MASTER_PORT": "1", "NODE_RANK": "0", "RANK": "0"},
        {"NODE_RANK": "1", "RANK": "1"},
    ):
        spare.await_first_rank(environment)
        assert pauses == []
    spare.await_first_rank({"MASTER_PORT": "1", "NODE_RANK": "1", "RANK": "1"})
    assert pauses == [spare.ELSEWHERE_SECONDS]


def test_commands_are_split():
    for command, expected in (
        ("python train.py --lr 1", Script(("python",), "", ("train.py", "--lr", "1"))),
        (
            "/usr/bin/python3.11 -u -O t.py",
            Script(("/usr/bin/python3.11", "-u", "-O"), "", ("t.py",)),
        ),
        ("python -X dev -m train a", Script(("python", "-X", "dev"), "train", ("train", "a"))),
        *((command, None) for command in ("python -c pass", "python", "python -m", "python -i")),
        *((command, None) for command in ("torchrun train.py", "bash python train.py")),
    ):
        assert take_apart(command.split()) == expected, command
