"""The live page in a real browser: its token, what is new, and a server that goes away."""

from dataclasses import replace
from urllib.parse import quote

import pytest

from addons.web.tests.records import SCRIPT
from addons.web.tests.served import TOKEN, Told, make_future
from addons.web.tests.test_queue_data import job
from dljob.core.recording.record import Ended, Gpu, Record
from dljob_web.answering import SourceError

pytestmark = pytest.mark.processes

TEXT = "document.getElementById('page').textContent"
LOOK = "document.dispatchEvent(new Event('visibilitychange'))"


@pytest.mark.story
def test_token_leaves_the_address_and_news_appear(watch):
    source = Told()

    async def look(page):
        await page.until(f"{TEXT}.includes('Of 300 GPU-s')")
        assert TOKEN not in await page.evaluate("location.href + document.cookie")
        assert "view=usage" in await page.evaluate("location.hash")
        source.go_on(100.0)
        # It would look again by itself after some seconds.
        await page.evaluate(LOOK)
        await page.until(f"{TEXT}.includes('Of 600 GPU-s')")

        # The page shows the fault in addition to the known facts.
        source.problem = SourceError("<b>no dljob up</b> answers; start one")
        await page.until(f"({LOOK}, {TEXT}.includes('<b>no dljob up</b> answers'))")
        assert "Of 600 GPU-s" in await page.evaluate(TEXT)
        source.problem = None
        await page.until(f"({LOOK}, !{TEXT}.includes('no dljob up'))")
        # The browser itself complains of an answer that is an error, and of nothing else.
        assert all("503" in each for each in page.complaints)

    watch(look, source, "&view=usage")


def test_without_the_token_the_page_asks_for_it(watch):
    async def look(page):
        await page.until("document.querySelector('input[type=password]') !== null")
        text = await page.evaluate(TEXT)
        assert "the token is missing or wrong" in text
        assert "evil" not in text
        await page.evaluate(f"document.querySelector('input').value = '{TOKEN}'")
        await page.evaluate("document.querySelector('form button').click()")
        await page.until("document.querySelector('canvas') !== null")

    watch(look, given="wrong")


def test_a_sight_that_reaches_to_now_follows_the_time(watch):
    source = Told()

    async def look(page):
        await page.until("document.querySelector('.told h2') !== null")
        span = "document.querySelector('header p').textContent.split(' · ').at(-2)"
        before = await page.evaluate(span)
        source.go_on(40.0)
        await page.evaluate(LOOK)
        await page.until(f"{span} !== {before!r}")
        # A step to the right leads no further: the sight is at the end, which is 40 s later.
        await page.evaluate("document.querySelector('canvas').focus()")
        await page.press("ArrowRight")
        await page.until("location.hash.includes('from=90.0&to=140.0')")
        assert "starts on 2 GPUs" in await page.evaluate(TEXT)

    watch(look, source, "&view=lanes&gpu=1&at=30&from=50&to=100")


NODES = [
    {
        "name": "node-2",
        "gpuType": "T4",
        "gpus": [
            {"index": 0, "state": "in use", "job": SCRIPT},
            {"index": 1, "state": "free"},
            {"index": 2, "state": "unavailable", "reason": "<b>ECC</b>"},
        ],
    }
]


@pytest.mark.parametrize("view", ["now", "usage", "lanes&gpu=2&at=50"])
def test_gpus_of_jobs_that_the_viewer_may_not_see_are_blocks(watch, view):
    source = Told()
    held = Gpu(at=1040.0, node="node-2", gpu=7, in_service=False, held=True)
    free = replace(held, at=1075.0, in_service=True, held=False)
    source.record = Record.of(source.record.header, [*source.record.lines, held, free])
    source.nodes = [{**NODES[0], "gpus": [{"index": 7, "state": "held"}]}]
    expected = {
        "now": "1 GPUs: 1 held by other jobs",
        "usage": "Held by other jobs35 GPU-s",
        "lanes&gpu=2&at=50": "another job",
    }

    async def look(page):
        await page.until("document.querySelector('main section') !== null")
        await page.until(f"{TEXT}.includes({expected[view]!r})")
        if view == "now":
            label = "document.querySelector('.gpu').getAttribute('aria-label')"
            assert await page.evaluate(label) == "GPU 7: held by another job"
        elif view != "usage":
            told = "document.querySelector('.told').textContent"
            assert "node-2, GPU 7: " in await page.evaluate(told)
            assert "(35 s)" in await page.evaluate(told)
            legend = "document.querySelector('.legend').textContent"
            assert "held by another job" in await page.evaluate(legend)
        assert page.complaints == []

    watch(look, source, f"&view={view}")


def test_of_much_that_the_record_lacks_the_first_is_shown_and_the_rest_is_a_click_away(watch):
    source = Told()
    missing = tuple(f"of job-{number} the beginning is not known" for number in range(60))
    source.record = replace(source.record, header=replace(source.record.header, missing=missing))
    visible = "[...document.querySelectorAll('p.missing')].map((each) => each.checkVisibility())"

    async def look(page):
        await page.until("document.querySelector('details') !== null")
        assert "Not complete for 58 more reasons" in await page.evaluate(TEXT)
        assert (await page.evaluate(visible)).count(True) == 2
        await page.evaluate("document.querySelector('summary').click()")
        await page.until(f"{visible}.every(Boolean)")
        assert page.complaints == []

    watch(look, source)


def test_now_is_a_map_of_gpus_and_the_queue(watch):
    source = Told()
    source.nodes = [{**NODES[0], "name": "node-10", "gpus": []}, *NODES]
    source.jobs = [
        job("<i>waits</i>", ahead=0, unknownBecause="none knows"),
        job("gives", phase="Adjusting", gives_to="<i>waits</i>"),
        job(SCRIPT, phase="Completed"),
    ]

    async def look(page):
        await page.until("document.querySelectorAll('.gpu').length === 3")
        text = await page.evaluate(TEXT)
        assert "3 GPUs: 1 idle, 1 in use, 1 out of service" in text
        assert "1 job waits" in text
        assert "<i>waits</i>" in text
        assert "The start is not known because none knows." in text
        assert "gives" in text
        labels = await page.evaluate(
            "[...document.querySelectorAll('.gpu')].map((gpu) => gpu.getAttribute('aria-label'))"
        )
        assert labels == [
            f"GPU 0: in use, {SCRIPT}",
            "GPU 1: idle",
            "GPU 2: out of service, <b>ECC</b>",
        ]
        names = "[...document.querySelectorAll('.node')].map((node) => node.ariaLabel)"
        # In the order in which people count.
        assert await page.evaluate(names) == ["node-2", "node-10"]
        colour = "getComputedStyle(document.querySelector('button.gpu')).backgroundColor"
        assert await page.evaluate(colour) != await page.evaluate(
            "getComputedStyle(document.querySelector('span.gpu')).backgroundColor"
        )
        await page.evaluate("document.querySelector('button.gpu').click()")
        await page.until("location.hash.includes('view=jobs')")
        assert page.complaints == []

    watch(look, source, "&view=now")


CHOOSE = """
(() => {
  const set = (element, value, kind) => {
    element.value = value;
    element.dispatchEvent(new Event(kind, {bubbles: true}));
  };
  const [policy, job] = document.querySelectorAll("select");
  set(policy, "fifo", "change");
  set(job, "<i>b</i>", "change");
  set(document.querySelectorAll("input")[2], "1", "input");
})()
"""


def living():
    """Make a source whose job of a hostile name trains until second 80, and has a status."""
    source = Told()
    lines = [line for line in source.record.lines if not isinstance(line, Ended)]
    source.record = Record.of(replace(source.record.header, until=1080.0), lines)
    document = job(SCRIPT, phase="Running")
    source.jobs = [document]
    at = "1970-01-01T00:18:00Z"
    ends = {"etaSeconds": 40, "etaLowSeconds": 30, "etaHighSeconds": 80}
    progress = {"fraction": 0.5, "iterationsPerSecond": 1.5, "countedAt": at, **ends}
    saved = {"type": "Saved", "status": "False", "reason": "NotYet", "message": "<b>none</b>"}
    conditions = [{**saved, "lastTransitionTime": at}]
    document["spec"]["training"] = {"target": {"metric": "<i>loss</i>"}}
    document["status"] |= {
        "allocation": {"gpus": 2},
        "progress": progress,
        "conditions": conditions,
    }
    return source


def test_a_job_shows_the_fan_of_its_end_its_conditions_and_where_it_is(watch):
    source = living()
    source.log = ["<b>step 1</b>", SCRIPT]

    async def look(page):
        await page.until("document.querySelector('polygon') !== null")
        await page.until("document.querySelector('pre') !== null")
        assert await page.evaluate("document.querySelector('pre').textContent") == "\n".join(
            source.log
        )
        # Of another node, and where it cannot be read.
        source.log = ["step 2"]
        await page.evaluate(
            "(({value, options}, list) => { list.value = options[1].value;"
            " list.dispatchEvent(new Event('change')); })"
            "(...Array(2).fill(document.querySelector('pre').parentElement.querySelector('select')))"
        )
        await page.until("document.querySelector('pre').textContent === 'step 2'")
        source.problem = SourceError("<b>ada</b> may not get pods/log", status=403)
        await page.evaluate("document.querySelector('p > button:only-of-type').click()")
        await page.until(f"{TEXT}.includes('<b>ada</b> may not get pods/log')")
        assert await page.evaluate("document.querySelector('pre')") is None
        source.problem = None
        assert all("403" in each for each in page.complaints)
        page.complaints.clear()
        # At 80 s it is half done, and ends between 110 s and 160 s, where the axis ends.
        fan = await page.evaluate("document.querySelector('polygon').getAttribute('points')")
        assert fan == "240.0,63.0 330.0,6.0 480.0,6.0"
        assert await page.evaluate("document.querySelector('.here').getAttribute('cy')") == "34.5"
        text = await page.evaluate(TEXT)
        assert "in 40 s; between 30 s and 1 min 20 s" in text
        assert "Metric: <i>loss</i>" in text
        assert "SavedFalseNotYet<b>none</b>" in text
        assert "2, now250 %2" in text
        source.jobs[0]["status"]["progress"]["etaSeconds"] = 35
        await page.until(f"{TEXT}.includes('in 35 s')")
        assert page.complaints == []

    watch(look, source, f"&view=jobs&job={quote(SCRIPT)}")


def test_what_if_shows_two_futures_above_each_other_with_gain_and_loss(watch):
    source = Told()
    source.nodes = NODES
    source.jobs = [job("a", ahead=0), job("<i>b</i>", phase="Running"), job("c", phase="Completed")]

    async def look(page):
        await page.until("document.querySelectorAll('select')[1]?.options.length === 3")
        await page.evaluate(CHOOSE)
        await page.until("!document.querySelectorAll('input')[2].disabled")
        await page.evaluate("document.querySelector('form button').click()")
        await page.until("document.querySelectorAll('.future').length === 2")
        text = await page.evaluate(TEXT)
        assert "As it is, by foresight: jobs end in 1 min 15 s on average" in text
        assert "If policy fifo decides, <i>b</i> has at most 1 GPUs, by fifo" in text
        assert "10 s earlier" in text
        assert (
            "1 of 2 jobs end earlier, 0 later, 0 at the same time, and of 1 it is not known" in text
        )
        assert "1 GPU is out of use." in text
        assert await page.evaluate("document.querySelectorAll('.future rect').length") == 5
        assert await page.evaluate("document.querySelectorAll('i:not(.key)').length") == 0
        assert page.complaints == []

    watch(look, source, "&view=whatif")


def test_what_if_draws_of_many_jobs_those_whose_ends_differ_most(watch):
    ends = [100.0] * 400
    others = [*ends[:-2], 70.0, 150.0]
    futures = [
        make_future(*((f"job-{number}", 1, end, [0.0, end, 1]) for number, end in enumerate(each)))
        for each in (ends, others)
    ]

    class Many(Told):
        def what_if(self, question, *, is_gone):
            return {"notes": [], "futures": futures}

    async def look(page):
        await page.until("document.querySelectorAll('select').length === 4")
        await page.evaluate("document.querySelector('form button').click()")
        await page.until("document.querySelectorAll('.future').length === 2")
        names = await page.evaluate(
            "[...document.querySelectorAll('.future')].map((future) =>"
            " [...future.querySelectorAll('span')].map((span) => span.textContent))"
        )
        assert [len(each) for each in names] == [16, 16]
        assert [each[:3] for each in names] == [["job-399", "job-398", "job-0"]] * 2
        text = await page.evaluate(TEXT)
        assert "Of 400 jobs, the 16 whose ends differ most are drawn." in text
        assert "1 of 400 jobs end earlier, 1 later, 398 at the same time." in text
        assert await page.evaluate("document.querySelectorAll('tbody tr').length") == 300
        assert page.complaints == []

    watch(look, Many(), "&view=whatif")
