"""The short form of the suite of attacks: nothing is broken, and what is tried can be read to begin with."""

import json
import random

import pytest

from dlcontrol.situation.status_documents import read_status
from dlcore.documents import jobfile, profilefile
from tests.attack import inputs
from tests.attack.counts import Count, Size
from tests.attack.inputs import Broken, Target, try_target


@pytest.mark.parametrize("target", inputs.TARGETS, ids=lambda target: target.name)
def test_no_input_breaks_a_reader(target: Target):
    count = target.count // inputs.SHARE_OF_SHORT
    found = try_target(target, count)
    assert (found.tried, found.broken) == (count, [])


def test_the_full_form_is_as_large_as_it_is_said_to_be():
    assert sum(target.count for target in inputs.TARGETS) >= 130_000


def test_what_is_changed_can_be_read_as_long_as_nothing_is_changed():
    for decode, document in inputs._MESSAGES:
        assert decode(json.dumps(document).encode()) is not None
    assert profilefile.parse_all(inputs._PROFILE)
    assert read_status(inputs._STATUS).placement
    for document in inputs._JOBS[:40]:
        assert jobfile.parse(document).id


def test_an_input_is_the_same_each_time():
    for target in inputs.TARGETS:
        one, other = (target.make(random.Random(f"{target.name}/7")) for _ in range(2))
        assert ascii(one) == ascii(other)


def test_what_is_broken_is_found_named_and_counted():
    def read(number: int) -> None:
        if number % 3 == 0:
            raise Broken("it is odd")
        if number % 5 == 0:
            raise OverflowError("unforeseen")

    target = Target("numbers", 1_000, lambda chance: chance.randrange(30), read)
    found = try_target(target, 200)
    assert found.tried == 200
    assert found.survived == 200 - len(found.broken)
    assert {each.split(": ", 1)[1] for each in found.broken} == {
        "it is odd",
        "OverflowError: unforeseen",
    }
    total = Count()
    total.add("numbers", found)
    assert total.survived == found.survived
    assert Size("short") is Size.SHORT
