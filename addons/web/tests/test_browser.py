"""The page in a real browser, without a window: what it shows of a record, and that hostile names are text."""

import asyncio
import html
import re
from urllib.parse import quote

import pytest

from addons.web.tests.devtools import opened
from addons.web.tests.records import SCRIPT, hostile_record
from dljob_web.document import write_page
from dljob_web.page_data import make_page_data

pytestmark = pytest.mark.processes

ELEMENTS = "document.getElementById('page').innerHTML"
TEXT = "document.getElementById('page').textContent"


@pytest.fixture
def show(chromium, tmp_path):
    """Open the page at a fragment; at the end nothing was complained about, such as by its policy."""

    file = tmp_path / "page.html"

    def show(look, fragment):
        async def go():
            file.write_text(write_page(make_page_data(hostile_record())), encoding="utf-8")
            address = f"{file.as_uri()}#{fragment}"
            async with opened(chromium, address, tmp_path / "profile") as page:
                await look(page)
                assert page.complaints == []

        asyncio.run(go())

    return show


@pytest.mark.story
def test_jobs_are_a_table_and_hostile_names_are_text(show):
    async def look(page):
        elements = await page.evaluate(ELEMENTS)
        assert html.escape(SCRIPT, quote=False) in elements
        assert r"=evil/a\u202eb\x07" in elements
        assert "\u202e" not in elements
        assert not {"script", "img", "b", "i", "u"} & set(re.findall(r"<([a-z0-9]+)", elements))
        assert (
            await page.evaluate("document.title")
            == "</title><script>alert(2)</script>: GPUs over time"
        )

    show(look, "view=jobs")


def test_job_shows_its_history(show):
    async def look(page):
        text = await page.evaluate(TEXT)
        assert "starts on 2 GPUs: <u>its turn</u>" in text
        assert "confidence 50 %" in text
        assert "What came: 6 s without training" in text
        assert "exit code 1" in text
        # Progress, the end that a decision expected, speed, metric, and speed with k GPUs.
        kinds = "[...document.querySelectorAll('polyline')].map((each) => each.className.baseVal)"
        assert await page.evaluate(kinds) == ["foreseen", "done", "fast", "fast", "fast"]
        row = "[...document.querySelectorAll('tbody td')].map((each) => each.textContent)"
        assert await page.evaluate(row) == ["2", "2", "50 %", "2"]
        assert "Last reported: 2.05." in text
        # The job for which it made room is one click away.
        await page.evaluate("document.querySelector('.entry button').click()")
        await page.until("document.querySelector('h2').textContent.startsWith('=evil')")
        assert await page.evaluate("document.querySelector('svg')") is None
        await page.evaluate("document.querySelector('main a').click()")
        await page.until("document.querySelectorAll('tbody tr').length === 2")
        await page.evaluate("location.hash = 'view=jobs&job=none'")
        await page.until(f"{TEXT}.includes('no job with this name')")

    show(look, f"view=jobs&job={quote(SCRIPT)}")


def test_lanes_show_the_clicked_decision_and_move(show):
    async def look(page):
        box = "document.querySelector('canvas').getBoundingClientRect()"
        left, top, width = await page.evaluate(f"[{box}.left, {box}.top, {box}.width]")
        # The gutter is 132 wide, and the time of the record is 100 s.
        x = left + 132 + (width - 132) * 0.3
        await page.mouse("mouseMoved", x, top + 24 + 30)
        title = "document.querySelector('canvas').title"
        await page.until(f"{title} !== ''")
        assert (await page.evaluate(title)).endswith(" on node-2, GPU 1")
        await page.click(x, top + 24 + 30)
        await page.until("document.querySelector('.told h2') !== null")
        text = await page.evaluate(TEXT)
        assert "node-2, GPU 1 (T4)" in text
        assert "starts on 2 GPUs: <u>its turn</u>" in text

        async def sight():
            return await page.evaluate(
                "location.hash.match(/from=([0-9.]+)&to=([0-9.]+)/)?.slice(1).map(Number) ?? null"
            )

        await page.mouse("mouseWheel", x, top + 50, deltaX=0, deltaY=-400)
        await page.until("location.hash.includes('from=')")
        begin, end = await sight()
        # The time below the pointer stays there.
        assert 0 < begin < 30 < end < 100
        assert (30 - begin) / (end - begin) == pytest.approx(0.3, abs=0.01)

        await page.mouse("mousePressed", x, top + 50, button="left", buttons=1)
        await page.mouse("mouseMoved", x - 200, top + 50, button="left", buttons=1)
        await page.mouse("mouseReleased", x - 200, top + 50, button="left")
        await page.until(f"!location.hash.includes('from={begin:.1f}&')")
        assert (await sight())[0] > begin

        await page.evaluate("document.querySelector('canvas').focus()")
        await page.press("ArrowDown", shift=True)
        await page.until("document.querySelector('.told h2').textContent.startsWith('node-10')")
        await page.press("0")
        await page.until("location.hash.includes('from=0.0&to=100.0')")

    show(look, "view=lanes")


def test_gpus_tell_why_they_have_no_job_and_a_table_where_their_time_went(show):
    async def look(page):
        for place, told in (
            ("view=lanes&gpu=2&at=70", "Out of service: <b>ECC</b>"),
            ("view=lanes&gpu=1&at=70", "Idle while at least one job waits."),
            ("view=usage", "Of 300 GPU-s"),
        ):
            await page.evaluate(f"location.hash = '{place}'")
            await page.until(f"{TEXT}.includes('{told}')")
        text = await page.evaluate(TEXT)
        # It trained on two GPUs for 44 seconds, and on one for 20.
        assert "Trained108 GPU-s" in text
        assert "Out of service60 GPU-s" in text

    show(look, "view=jobs")
