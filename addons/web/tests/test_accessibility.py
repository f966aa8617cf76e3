"""
Every view is accessible: axe-core finds nothing serious, the keyboard reaches all, and a phone
shows it without scrolling sideways.

axe-core is in ``vendor``, for tests alone, with its hashes and licences.
"""

import asyncio
import contextlib
import hashlib
import json
from pathlib import Path

import pytest

from addons.web.tests.devtools import opened
from addons.web.tests.records import SCRIPT
from addons.web.tests.served import TOKEN, served
from addons.web.tests.test_live import CHOOSE, NODES, living
from addons.web.tests.test_queue_data import job
from dljob.core.recording.record import Gpu, Record
from tests.loops import on_loop

VENDOR = Path(__file__).parent / "vendor"

READY = {
    "lanes": "document.querySelector('canvas') !== null",
    "lanes of others": "document.querySelector('.told h2')?.textContent === 'another job'",
    "now": "document.querySelectorAll('.gpu').length === 4",
    "jobs": "document.querySelector('tbody') !== null",
    "job": "document.querySelector('polygon') !== null && document.querySelector('pre') !== null",
    "usage": "document.querySelector('.stack') !== null",
    "whatif": "document.querySelectorAll('select')[1]?.options.length === 4",
}
"""When a view shows what it has."""

PLACES = {"job": f"view=jobs&job={SCRIPT}", "lanes of others": "view=lanes&gpu=2&at=50"}
"""The addresses of views, where they say more than the view."""

SERIOUS = """
axe.run(document, { resultTypes: ["violations"] }).then(({ violations }) => violations
  .filter(({ impact }) => impact === "serious" || impact === "critical")
  .map(({ id, nodes }) => `${id}: ${nodes.slice(0, 3).map((node) => `${node.html.slice(0, 120)} (${node.failureSummary})`).join(" | ")}`))
"""

REACHABLE = """
[...document.querySelectorAll("button, select, input, a[href], [tabindex]")]
  .filter((each) => !each.disabled && each.tabIndex >= 0).length
"""

PHONE = {"width": 360, "height": 740, "deviceScaleFactor": 2, "mobile": True}


def source():
    told = living()
    held = Gpu(at=1020.0, node="node-2", gpu=2, in_service=False, held=True)
    told.record = Record.of(told.record.header, [*told.record.lines, held])
    told.nodes = [{**NODES[0], "gpus": [*NODES[0]["gpus"], {"index": 3, "state": "held"}]}]
    told.jobs += [job("a", ahead=0), job("<i>b</i>", phase="Running"), job("c", phase="Completed")]
    return told


@contextlib.asynccontextmanager
async def each_view(chromium, tmp_path):
    """Open the page; yields it, and a function that shows a view."""
    async with (
        served(source()) as ask,
        opened(chromium, f"{ask.address}#token={TOKEN}", tmp_path / "profile") as page,
    ):
        await page.until("document.querySelector('nav') !== null")

        async def show(view):
            place = PLACES.get(view, f"view={view}")
            await page.evaluate(f"location.hash = new URLSearchParams({json.dumps(place)})")
            await page.until(READY[view])
            if view == "whatif":
                await page.evaluate(CHOOSE)
                await page.until("!document.querySelectorAll('input')[2].disabled")
                await page.evaluate("document.querySelector('form button').click()")
                await page.until("document.querySelectorAll('.future').length === 2")

        yield page, show


def test_vendored_files_match_their_hashes():
    for line in (VENDOR / "SHA256SUMS").read_text(encoding="utf-8").splitlines():
        digest, name = line.split()
        assert hashlib.sha256((VENDOR / name).read_bytes()).hexdigest() == digest, name


@pytest.mark.processes
@on_loop
async def test_axe_finds_nothing_serious_in_any_view(chromium, tmp_path):
    axe = (VENDOR / "axe.min.js").read_text(encoding="utf-8")
    found = {}
    async with each_view(chromium, tmp_path) as (page, show):
        await page.evaluate(f"{axe}; null")
        for view in READY:
            await show(view)
            for scheme in ("light", "dark"):
                features = [{"name": "prefers-color-scheme", "value": scheme}]
                await page.ask("Emulation.setEmulatedMedia", features=features)
                found[view, scheme] = await page.evaluate(SERIOUS)
        # The form that asks for the token.
        await page.evaluate("sessionStorage.clear(); location.hash = 'token=wrong'")
        await page.until("document.querySelector('input[type=password]') !== null")
        found["asking", "dark"] = await page.evaluate(SERIOUS)
    assert found == {view: [] for view in found}


async def is_reached_by_keyboard(page):
    """Return whether the Tab key reaches every control of the view."""
    await page.evaluate("document.activeElement.blur(); window.reached = new Set()")
    count = await page.evaluate(REACHABLE)
    for _ in range(count + 2):
        await page.press("Tab", code=9)
        await page.evaluate(
            "document.activeElement !== document.body && reached.add(document.activeElement)"
        )
    return await page.evaluate("reached.size") == count


@pytest.mark.processes
def test_the_keyboard_reaches_all_in_any_view_and_a_phone_shows_it_without_scrolling_sideways(
    chromium, tmp_path
):
    async def look():
        async with each_view(chromium, tmp_path) as (page, show):
            for view in READY:
                await show(view)
                assert await is_reached_by_keyboard(page), view
            # A job is a press of Enter away from its GPU.
            await show("now")
            await page.evaluate("document.querySelector('button.gpu').focus()")
            await page.press("Enter", code=13, text="\r")
            await page.until("location.hash.includes('view=jobs')")
            assert page.complaints == []
            await page.ask("Emulation.setDeviceMetricsOverride", **PHONE)
            for view in READY:
                await show(view)
                widths = (
                    "[document.documentElement.scrollWidth, document.documentElement.clientWidth]"
                )
                scrolled, width = await page.evaluate(widths)
                assert (scrolled <= width, width) == (True, 360), view

    asyncio.run(look())
