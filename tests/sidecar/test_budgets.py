"""Spare interpreters take no more memory than they may, and a report says if that is too little."""

from __future__ import annotations

import pytest

from dlsidecar.warm.budgets import FIRST_GUESS_BYTES, Budget, read_free_bytes

MIB = 1 << 20


def budget(free_mib, given_mib=0):
    return Budget(given_mib * MIB, lambda: free_mib * MIB)


def test_half_of_what_is_free_is_for_spares():
    some = budget(4096)
    assert some.allow(8, ready=0) == (8, "")
    assert some.limit_bytes == 2048 * MIB
    most, why = some.allow(9, ready=0)
    assert most == 2048 * MIB // FIRST_GUESS_BYTES == 8
    assert why.startswith("9 spare interpreters are needed and 8 fit into 2048 MiB")
    assert "half of what is free" in why


def test_what_one_takes_is_learnt_from_those_that_are_ready():
    some = budget(1024)
    some.learn(100 * MIB)
    assert some.allow(9, ready=0)[0] == 5
    # Of the memory that is in use, a part is theirs.
    assert some.allow(9, ready=4)[0] == 7


def test_the_job_may_say_how_much_it_is():
    some = budget(100_000, given_mib=512)
    most, why = some.allow(4, ready=0)
    assert most == 2
    assert "--spare-memory" in why


def test_where_nobody_knows_what_is_free_there_is_no_limit():
    some = Budget(0, lambda: -1)
    assert some.allow(128, ready=0) == (128, "")
    assert some.limit_bytes == 0


@pytest.mark.processes
def test_this_machine_says_what_is_free():
    assert 0 < read_free_bytes() < 1 << 50
