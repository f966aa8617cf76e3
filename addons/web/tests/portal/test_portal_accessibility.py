"""The page of a cluster before and after the login: axe finds nothing serious, the keyboard reaches all, and a phone shows it."""

import pytest

from addons.web.tests.devtools import opened
from addons.web.tests.portal.houses import RED
from addons.web.tests.portal.test_portal_browser import FIELD, TEXT
from addons.web.tests.test_accessibility import PHONE, SERIOUS, VENDOR, is_reached_by_keyboard
from tests.loops import on_loop

pytestmark = [pytest.mark.cluster, pytest.mark.processes]

JOB = f"view=jobs&job={RED}%2Fred-runs"
WIDTHS = "document.documentElement.scrollWidth <= document.documentElement.clientWidth"


async def look(page):
    """Return what a view lacks."""
    found = []
    for scheme in ("light", "dark"):
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        await page.ask("Emulation.setEmulatedMedia", features=features)
        found += await page.evaluate(SERIOUS)
    if not await is_reached_by_keyboard(page):
        found.append("the keyboard does not reach all")
    await page.ask("Emulation.setDeviceMetricsOverride", **PHONE)
    if not await page.evaluate(WIDTHS):
        found.append("a phone scrolls sideways")
    await page.ask("Emulation.clearDeviceMetricsOverride")
    return found


@on_loop
async def test_the_login_by_keyboard_and_a_job_by_its_address(house, chromium, tmp_path):
    axe = (VENDOR / "axe.min.js").read_text(encoding="utf-8")
    async with opened(chromium, f"{house.address}/#{JOB}", tmp_path / "profile") as page:
        await page.evaluate(f"{axe}; null")
        await page.until(f"{FIELD} !== null")
        assert await look(page) == []
        # The address of the job is kept by the login.
        await page.evaluate(f"{FIELD}.value = '{house.tokens['red']}'; {FIELD}.focus()")
        await page.press("Enter", code=13, text="\r")
        await page.until(f"{TEXT}.includes('Now: ')")
        assert await page.evaluate("document.querySelector('h2').textContent") == f"{RED}/red-runs"
        assert await look(page) == []
