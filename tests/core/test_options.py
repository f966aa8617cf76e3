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
from dljob.core.options import Bounds, Rule, declare, rules_of
from dljob.sim import policies
from tests.builders import make_cluster, make_snapshot, make_state


class Case(NamedTuple):
    """An option of a policy with a value."""

    policy: str
    key: str
    rule: Rule
    text: str


NONSENSE = ("", " ", "many", "None", "1;2", "0x10", "1e999", "-1e999", "nan", "inf", "-inf")


def iter_cases(wrong: bool) -> Iterator[Case]:
    for name, policy in policies.POLICIES.items():
        for key, rule in rules_of(policy).items():
            texts = iter_wrong(rule) if wrong else iter_right(rule)
            yield from (Case(name, key, rule, text) for text in texts)


def iter_wrong(rule: Rule) -> Iterator[str]:
    yield from NONSENSE
    match rule.default:
        case bool():
            yield from ("1", "0", "yes", "True")
        case str():
            yield from (word.upper() for word in rule.words)
        case _:
            step = 1.0 if isinstance(rule.default, int) else 1e-6
            yield from (write(rule, bound) for bound in iter_beyond(rule.bounds, step))
    if type(rule.default) is int:
        yield from ("1.5", "1e1", str(10**400))
    if isinstance(rule.default, tuple):
        yield from ("2,1", "1,1", "1,nan", "1,inf", "1,", ",", "0,1", "-1,1")


def iter_beyond(bounds: Bounds, step: float) -> Iterator[float]:
    """The nearest numbers that are out of range, and far ones."""
    if bounds.at_least is not None:
        yield from (bounds.at_least - step, bounds.at_least - 1e9)
    if bounds.above is not None:
        yield from (bounds.above, bounds.above - 1e9)
    if bounds.at_most is not None:
        yield from (bounds.at_most + step, bounds.at_most + 1e9)
    if bounds.below is not None:
        yield from (bounds.below, bounds.below + 1e9)


def iter_right(rule: Rule) -> Iterator[str]:
    match rule.default:
        case bool():
            yield from ("true", "false")
        case str():
            yield from rule.words
        case _:
            bounds = rule.bounds
            ends = (bounds.at_least, bounds.at_most)
            yield from (write(rule, end) for end in ends if end is not None)
            if bounds.above is not None:
                yield write(rule, math.nextafter(bounds.above, math.inf))
            if bounds.below is not None:
                yield write(rule, math.nextafter(bounds.below, -math.inf))
            if bounds.at_most is None and bounds.below is None:
                yield "1e300"


def write(rule: Rule, number: float) -> str:
    return str(round(number)) if isinstance(rule.default, int) else repr(number)


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
    assert str(Bounds()) == ""
    assert str(Bounds(at_least=0.0, at_most=1e6)) == " from 0 to 1,000,000"
    assert str(Bounds(above=0.5, at_most=2.0)) == " above 0.5 and of at most 2"
    assert str(Bounds(at_least=1.0, below=2.5)) == " of at least 1 and below 2.5"


def test_many_priorities_stay_in_order():
    policy: Policy = policies.make("foresight")
    states = [make_state(f"job-{n}", options=(1,), priority=n) for n in range(300)]
    plan = cycle.schedule(make_snapshot(make_cluster(n1=2), *states), policy)
    assert [step.job for step in plan.steps if hasattr(step, "placement")] == ["job-299", "job-298"]
