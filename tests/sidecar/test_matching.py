"""What matched is known to be of this beginning or of the one before."""

from __future__ import annotations

import asyncio

import pytest

from dlsidecar.expressions import Matcher
from dlsidecar.processes import Reaper
from tests.sidecar.clients import live_through

pytestmark = pytest.mark.processes


def test_what_was_handed_over_before_a_beginning_comes_back_as_late():
    async def story() -> None:
        found: list[tuple[str, bool]] = []
        all_there = asyncio.Event()

        def take(groups: dict[str, str], is_late: bool) -> None:
            found.append((groups["iteration"], is_late))
            if len(found) == 2:
                all_there.set()

        problems: list[str] = []
        matcher = Matcher(
            reaper=Reaper(),
            on_match=take,
            on_problem=lambda name, _: problems.append(name),
            progress=r"step (?P<iteration>\d+)",
        )
        matcher.begin()
        matcher.feed(b"step 2\n")
        # Its answer cannot have come, because nobody else had a turn.
        matcher.begin()
        matcher.feed(b"step 3\n")
        await all_there.wait()
        assert found == [("2", True), ("3", False)]
        assert not problems
        matcher.stop()

    live_through(story())
