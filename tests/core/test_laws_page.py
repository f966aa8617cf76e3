"""The page about policies lists every law, and its examples break them."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from dljob.core import cycle
from dljob.core.checking import BrokenLaw, Law
from dljob.core.contract import Decision, Share
from dljob.core.placement.limits import NamespaceLimits
from tests.builders import make_cluster, make_policy, make_snapshot, make_state

PAGE = Path(__file__).parents[2] / "docs" / "policies.md"

ROW = re.compile(
    r"^\| `(?P<law>[a-z-]+)` \| (?P<demands>[^|]+) \| (?P<example>[^|]+) \|$", re.MULTILINE
)
SHARES = re.compile(r"`(\{.*?\})`")


def read_rows() -> dict[str, re.Match[str]]:
    section = PAGE.read_text(encoding="utf-8").partition("\n## Laws\n")[2].partition("\n## ")[0]
    return {row["law"]: row for row in ROW.finditer(section)}


def list_examples() -> list[tuple[str, str]]:
    found = ((law, SHARES.search(row["example"])) for law, row in read_rows().items())
    return [(law, shares[1]) for law, shares in found if shares is not None]


def test_page_lists_every_law():
    assert list(read_rows()) == [law.value for law in Law]


def test_law_without_example_says_a_policy_cannot_break_it():
    for law, row in read_rows().items():
        assert ("A policy cannot do that" in row["example"]) != (law in dict(list_examples()))


@pytest.mark.parametrize(("law", "shares"), list_examples())
def test_example_of_a_law_breaks_it(law, shares):
    snapshot = make_snapshot(
        make_cluster(n1=4, n2=4),
        make_state("old", holds={"n1": (0, 1, 2, 3)}),
        make_state("new"),
        make_state("bound", bound_to=("n1",)),
        make_state("team/job"),
        now=60.0,
    )
    snapshot = replace(snapshot, limits=NamespaceLimits(max_gpus={"team": 2}))
    decision = Decision(eval(shares, {"Share": Share}))  # noqa: S307 - it is our own page
    with pytest.raises(BrokenLaw, match=f"Policy 'fake' broke the law \"{law}\" at t=60 s: job "):
        cycle.schedule(snapshot, make_policy(decision))
