"""
Every option of every policy: what is out of range is refused by name, and what is in range works.

The cases follow from the declarations, so that the option of a new policy is covered by being there.
"""

import itertools
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

import pytest

from dljob.core import cycle
from dljob.core.contract import Policy
from dljob.core.options import Rising, declare, rules_of
from dljob.sim import policies
from dljob_wire.kinds import Flag, Kind, Number, OneOf, Whole
from tests.builders import make_cluster, make_snapshot, make_state


class Case(NamedTuple):
    """An option of a policy with a value."""

    policy: str
    key: str
    rule: Kind
    text: str


NONSENSE = ("", " ", "many", "None", "1;2", "0x10", "1e999", "-1e999", "nan", "inf", "-inf")


def iter_cases(wrong: bool) -> Iterator[Case]:
    for name, policy in policies.POLICIES.items():
        for key, rule in rules_of(policy).items():
            texts = iter_wrong(rule) if wrong else iter_right(rule)
            yield from (Case(name, key, rule, text) for text in texts)


def iter_wrong(rule: Kind) -> Iterator[str]:
    yield from NONSENSE
    match rule:
        case Flag():
            yield from ("1", "0", "yes")
        case OneOf():
            yield from (word.upper() for word in rule.words)
        case Whole():
            step = 1.0 if is_whole(rule) else 1e-6
            yield from (write(rule, bound) for bound in iter_beyond(rule, step))
    if is_whole(rule):
        yield from ("1.5", "1e1", str(10**400))
    if isinstance(rule, Rising):
        yield from ("2,1", "1,1", "1,nan", "1,inf", "1,", ",", "0,1", "-1,1")


def iter_beyond(rule: Whole, step: float) -> Iterator[float]:
    """The nearest numbers that are out of range, and far ones."""
    if rule.minimum > -math.inf:
        yield from (rule.minimum - (0.0 if rule.above else step), rule.minimum - 1e9)
    if rule.maximum < math.inf:
        yield from (rule.maximum + (0.0 if rule.below else step), rule.maximum + 1e9)


def iter_right(rule: Kind) -> Iterator[str]:
    match rule:
        case Flag():
            yield from ("true", "false")
        case OneOf():
            yield from rule.words
        case Whole():
            if rule.minimum > -math.inf:
                least = math.nextafter(rule.minimum, math.inf) if rule.above else rule.minimum
                yield write(rule, least)
            if rule.maximum < math.inf:
                most = math.nextafter(rule.maximum, -math.inf) if rule.below else rule.maximum
                yield write(rule, most)
            else:
                yield "1e300"


def is_whole(rule: Kind) -> bool:
    return isinstance(rule, Whole) and not isinstance(rule, Number)


def write(rule: Kind, number: float) -> str:
    return str(round(number)) if is_whole(rule) else repr(float(number))


def test_out_of_range_options_are_refused():
    for case in iter_cases(wrong=True):
        with pytest.raises(ValueError, match=f"^{re.escape(case.policy)}: ") as refused:
            policies.make(case.policy, {case.key: case.text})
        assert str(refused.value) == (
            f"{case.policy}: {case.key} cannot be {case.text!r}; write {case.rule.allowed}"
        )


def test_range_ends_work():
    elastic = (1, 2, 4)
    states = [
        make_state("old", options=elastic, holds={"n1": (0, 1)}, priority=20),
        make_state("unknown", options=elastic, iterations_total=math.inf, priority=-20),
        make_state("strange", options=elastic, model="never-seen"),
        *(make_state(f"new-{n}", options=elastic, priority=n) for n in range(5)),
    ]
    for case in iter_cases(wrong=False):
        policy = policies.make(case.policy, {case.key: case.text})
        snapshot = make_snapshot(make_cluster(n1=2, n2=4), *states)
        for now in (0.0, 1e6):
            plan = cycle.schedule(replace(snapshot, now=now), policy)
            assert plan.wake_at is None or plan.wake_at > now, case
            snapshot = replace(snapshot, policy_state=plan.policy_state)


def test_constructor_refuses_wrong_options():
    options = [(name, key) for name in policies.NAMES for key in policies.options_of(name)]
    wrongs: tuple[Any, ...] = (None, "x", math.nan, -math.inf, [1.0])
    for (name, key), wrong in itertools.product(options, wrongs):
        known: Any = policies.POLICIES[name]
        with pytest.raises(ValueError, match=f"^{name}: {key} cannot be "):
            known(**{key: wrong})


def test_number_without_range_is_refused():
    @dataclass
    class Careless:
        name: ClassVar[str] = "careless"
        depth: int = 3

    with pytest.raises(TypeError, match=r"careless: say with declare\(\) what depth may be"):
        rules_of(Careless)


def test_default_out_of_range_is_refused():
    with pytest.raises(
        TypeError, match="the default 3 is not allowed; write a whole number from 4 to 5"
    ):
        declare(3, at_least=4, at_most=5)


def test_ranges_are_readable():
    assert Number(-math.inf, math.inf).allowed == "a number"
    assert Number(0.0, 1e6).allowed == "a number from 0 to 1,000,000"
    assert Number(0.5, 2.0, above=True).allowed == "a number above 0.5 and of at most 2"
    assert Number(1.0, 2.5, below=True).allowed == "a number of at least 1 and below 2.5"


def test_many_priorities_stay_in_order():
    policy: Policy = policies.make("foresight")
    states = [make_state(f"job-{n}", options=(1,), priority=n) for n in range(300)]
    plan = cycle.schedule(make_snapshot(make_cluster(n1=2), *states), policy)
    assert [step.job for step in plan.steps if hasattr(step, "placement")] == ["job-299", "job-298"]
