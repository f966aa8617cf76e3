"""The page of a cluster in a real browser: a user logs in, sees the own jobs, harmless, and logs out."""

import pytest

from addons.web.tests.devtools import opened
from addons.web.tests.portal.houses import BLUE, HOME, READ_JOBS, RED, grant, make_token
from tests.loops import on_loop

pytestmark = [pytest.mark.cluster, pytest.mark.processes]

TEXT = "document.getElementById('page').textContent"
FIELD = "document.querySelector('input[type=password]')"
WHAT_IF = "[...document.querySelectorAll('nav button')].find((each) => each.textContent === 'What if').click()"
LOOK = "document.dispatchEvent(new Event('visibilitychange'))"
SHOWN = f"{TEXT} + document.title + decodeURIComponent(location.href)"

HOLD = """
const original = window.fetch;
let isOver = false;
window.held = [];
window.fetch = async (path, options) => {
  const answer = await original(path, options);
  if (path === '/api/v1/page' && !isOver) await new Promise((go) => window.held.push(go));
  return answer;
};
window.release = async () => {
  isOver = true;
  for (const go of window.held) go();
  await new Promise((done) => setTimeout(done));
};
"""
"""Lets answers arrive at the page later than the server gave them."""


async def log_in(page, token):
    await page.until(f"{FIELD} !== null")
    await page.evaluate(f"{FIELD}.value = '{token}'")
    await page.evaluate("document.querySelector('form button').click()")


async def log_out(page):
    await page.evaluate(
        "[...document.querySelectorAll('button')].find((each) => each.textContent === 'Log out').click()"
    )


@on_loop
async def test_a_user_logs_in_and_sees_the_own_jobs_and_logs_out(house, chromium, tmp_path):
    async with opened(chromium, f"{house.address}/#view=jobs", tmp_path / "profile") as page:
        await page.until(f"{FIELD} !== null")
        assert "the token is missing" in await page.evaluate(TEXT)
        await log_in(page, "nonsense")
        await page.until(f"{TEXT}.includes('does not accept it')")
        token = house.tokens["red"]
        await log_in(page, token)
        await page.until(f"document.readyState === 'complete' && {TEXT}.includes('{RED}')")
        # Scripts see neither the token nor the cookie of the session.
        kept = await page.evaluate(
            "JSON.stringify([document.cookie, {...sessionStorage}, {...localStorage}, location.href])"
        )
        assert token not in kept
        assert "dljob" not in await page.evaluate("document.cookie")
        text = await page.evaluate(TEXT)
        assert BLUE not in text
        assert "Not complete: you see the jobs of namespaces" in text
        await page.evaluate("[...document.querySelectorAll('tbody button')].at(0).click()")
        await page.until(f"{TEXT}.includes('</script><script>')")
        assert await page.evaluate("document.title") != "stolen"
        # Futures are played with all jobs.
        await page.evaluate(WHAT_IF)
        await page.until(f"{TEXT}.includes('you may not list DLJobs in all namespaces')")
        assert await page.evaluate("document.querySelector('form')") is None
        await log_out(page)
        await page.until(f"{FIELD} !== null")
        # The browser itself complains of answers that are refusals, and of nothing else.
        refusals = ("401 (Unauthorized)", "403 (Forbidden)")
        assert all(any(r in each for r in refusals) for each in page.complaints), page.complaints


@on_loop
async def test_full_view_plays_two_futures(house, chromium, tmp_path):
    async with opened(chromium, f"{house.address}/#view=whatif", tmp_path / "profile") as page:
        await log_in(page, house.tokens["chief"])
        await page.until("document.querySelectorAll('select')[1]?.options.length === 3")
        await page.evaluate(
            f"(() => {{ const job = document.querySelectorAll('select')[1]; job.value = '{RED}/red-runs';"
            " job.dispatchEvent(new Event('change', { bubbles: true })); })()"
        )
        await page.until("!document.querySelector('input[type=number]').disabled")
        await page.evaluate(
            "(() => { const most = document.querySelectorAll('input[type=number]')[2]; most.value = '1';"
            " most.dispatchEvent(new Event('input', { bubbles: true })); })()"
        )
        await page.evaluate("document.querySelector('form button').click()")
        await page.until(f"{TEXT}.includes('If {RED}/red-runs has at most 1 GPUs')")
        assert "2 → 1" in await page.evaluate(TEXT)
        assert all("401" in each for each in page.complaints)


@on_loop
async def test_an_answer_to_the_user_before_is_not_shown_to_the_next_one(house, chromium, tmp_path):
    place = f"#view=jobs&job={RED}%2Fred-runs"
    async with opened(chromium, f"{house.address}/{place}", tmp_path / "profile") as page:
        await log_in(page, house.tokens["red"])
        await page.until(f"{TEXT}.includes('for red-runs')")
        await page.evaluate(f"(() => {{ {HOLD} }})()")
        await page.until(f"({LOOK}, window.held.length > 0)")
        await log_out(page)
        await page.until(f"!({SHOWN}).includes('{RED}')")
        # The answer to red, and perhaps one that the page without a session has got.
        await page.evaluate("window.release()")
        assert RED not in await page.evaluate(SHOWN)
        await log_in(page, house.tokens["blue"])
        await page.until(f"{TEXT}.includes('{BLUE}')")
        assert RED not in await page.evaluate(SHOWN)


@on_loop
async def test_revoked_right_hides_its_data(house, chromium, tmp_path):
    house.api.post(f"/api/v1/namespaces/{HOME}/serviceaccounts", {"metadata": {"name": "guest"}})
    grant(house.api, "Role", RED, "guest", READ_JOBS)
    token = make_token(house.api, "guest")
    async with opened(chromium, f"{house.address}/#view=jobs", tmp_path / "profile") as page:
        await log_in(page, token)
        await page.until(f"{TEXT}.includes('{RED}')")
        await page.evaluate("[...document.querySelectorAll('nav button')].at(1).click()")
        await page.until("document.querySelector('.gpu') !== null")
        house.api.delete(f"/apis/rbac.authorization.k8s.io/v1/namespaces/{RED}/rolebindings/guest")
        await page.until(f"({LOOK}, {TEXT}.includes('may list neither'))")
        assert RED not in await page.evaluate(SHOWN)
        assert await page.evaluate("document.querySelector('.gpu')") is None
        # The user can only go, and another one come.
        await log_out(page)
        await log_in(page, house.tokens["blue"])
        await page.until(f"{TEXT}.includes('4 GPUs: 1 idle, 1 in use, 2 held by other jobs')")
        assert RED not in await page.evaluate(SHOWN)
