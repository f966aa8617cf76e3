"""
The page of a cluster while many jobs come, go and reshape, in headless Chromium; and what "What if" takes at a large size.

A real API server and scheduler, the operator, the SideCars, their trainings and the page's server run, each as a process;
kubelets are played. A user logs in with a token. Measured are: the time until each view shows all jobs, the frames while
the view is scrolled, the delay from a new job to the page, the memory of the page and of its server, that the
console has no errors, and what fifty more viewers cost the operator. At three moments, in which the operator is stopped,
each view is compared with the record of its store, the commands' output and the API server's DLJobs.

Then another control plane is filled with as many jobs as a large cluster has, and questions are asked over the API of the page's server.
"""

import asyncio
import base64
import io
import json
import os
import shutil
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

import click
from _coming_and_going import ITERATIONS, count_ended, remove_some, submit
from _inhabited_cluster import TEAM, VIEWER, fill, inhabited
from _leading_cost import count_leading
from _measuring import describe_machine, print_result, summarize
from _page_compared import Comparison
from _page_reading import Reading
from _page_truths import Truth, full_name
from _progress import attempts, count, run, say
from lanes import MOVE, ZOOMS, cpu_seconds, find_renderers, memory_mb
from PIL import Image

from addons.web.tests.devtools import Page, opened
from addons.web.tests.portal.houses import House
from tests.operator.stages import Stage, staged

Json = dict[str, Any]

ON_A_NODE = 4
LIMIT_S = 1800.0
STORE = "profiles.db"
"""The operator's store, in the folder of its stage."""
PATIENT = {"lease.leaseSeconds": 900, "lease.giveUpSeconds": 890, "lease.stuckSeconds": 880}
"""A Lease that an operator keeps while it is stopped for a comparison."""
AGAIN_S = 0.3
SETTLED_S = 2.0
COLOURS = 64
"""Of a picture for the docs, which is half as large by that."""
MOST_TOLD = 20
"""The number of differences that are printed for each view."""
SIZE = {"width": 1400, "height": 900, "deviceScaleFactor": 1, "mobile": False}

HEADER = "document.querySelector('header').textContent"
LINKS = "new Set([...document.querySelectorAll('.node p button, tbody th button')].map((each) => each.textContent))"
TEXT = "document.getElementById('page').textContent"
ROWS = "document.querySelectorAll('tbody tr').length"
CHOICES = "(document.querySelectorAll('select')[1]?.options.length ?? 0) - 1"

OTHER = "fifo"
"""The policy of the question that is asked on the page."""

CHOOSE = """
{
  const chosen = document.querySelector("select");
  chosen.value = POLICY;
  chosen.dispatchEvent(new Event("change", { bubbles: true }));
}
"""

SCROLL = """
new Promise((done) => {
  const times = [];
  const step = (at) => {
    times.push(at);
    if (times.length > FRAMES) { scrollTo(0, 0); done(times); return; }
    scrollBy(0, Math.floor(times.length / 60) % 2 ? -40 : 40);
    requestAnimationFrame(step);
  };
  requestAnimationFrame(step);
})
"""


class View(NamedTuple):
    """A view of the page, and an expression for the number of jobs that it shows."""

    shown: str
    has_ended: bool = True
    """True if it shows jobs that have ended, too."""
    moves: str = SCROLL


VIEWS = {
    "lanes": View(f"parseInt({HEADER}.match(/(\\d+) jobs/)?.[1])", moves=MOVE),
    "now": View(f"{LINKS}.size", has_ended=False),
    "jobs": View(ROWS),
    "whatif": View(CHOICES, has_ended=False),
}


class Looking:
    """A user who looks at the page while jobs come and go."""

    def __init__(self, page: Page, stage: Stage, *, jobs: int, pictures: Path | None) -> None:
        self._page = page
        self._reading = Reading(page)
        self._stage = stage
        self._jobs = jobs
        self._pictures = pictures

    async def log_in(self, token: str) -> float:
        """Log in, and return the seconds until the first view shows all jobs."""
        await self._page.ask("Emulation.setDeviceMetricsOverride", **SIZE)
        field = "document.querySelector('input[type=password]')"
        await self._page.until(f"{field} !== null")
        await self._take_picture("login")
        await self._page.evaluate(f"{field}.value = {json.dumps(token)}")
        began = time.monotonic()
        await self._page.evaluate("document.querySelector('form button').click()")
        count = VIEWS["lanes"].shown
        await self._page.until(
            f"document.querySelector('canvas') !== null && {count} >= {self._jobs}"
        )
        return time.monotonic() - began

    async def look(self, name: str, frames: int) -> Json:
        """Open a view, and scroll it."""
        view = VIEWS[name]
        await self._reading.open(name)
        began = time.monotonic()
        for _ in attempts(f"{name} shows all jobs"):
            # Some end while it is opened, and the page shows each end a little later.
            late = 0 if view.has_ended else await asyncio.to_thread(count_ended, self._stage)
            late += 0 if view.has_ended else self._jobs // 10
            if await self._page.evaluate(view.shown) >= self._jobs - late:
                break
            await asyncio.sleep(AGAIN_S)
        shown_s = time.monotonic() - began
        await self._take_picture(name)
        moves = view.moves.replace("FRAMES", str(frames)).replace("ZOOMS", str(ZOOMS))
        times = await self._page.evaluate(moves)
        gaps = [later - earlier for earlier, later in pairwise(times)]
        return {
            "view": name,
            "jobs": await self._page.evaluate(view.shown),
            "all_shown_s": round(shown_s, 3),
            "frames_per_s": round(1000.0 / mean(gaps), 1),
            "frame_ms": summarize(gaps),
        }

    async def compare(self, kubeconfig: Path, moment: str) -> Json:
        """Compare every view with the truth, while the operator changes nothing."""
        say(f"compares {moment}")
        [operator] = self._stage.operators
        truth = await asyncio.to_thread(self._stop, kubeconfig)
        try:
            found = await Comparison(self._reading, truth).compare()
        finally:
            operator.thaw()
        for name, each in found.items():
            for difference in each.differences[:MOST_TOLD]:
                say(f"{moment}, {name}: {difference}")
        row = {
            "compared": moment,
            **{name: each.compared for name, each in found.items()},
            "differences": sum(len(each.differences) for each in found.values()),
        }
        say(str(row))
        return row

    def _stop(self, kubeconfig: Path) -> Truth:
        """Stop the operator where it has written everything that it decided."""
        [operator] = self._stage.operators
        for _ in attempts("the operator is between two decisions"):
            operator.freeze()
            # The API server may have requests of the operator that it has not carried out yet.
            jobs: list[Json] = []
            while jobs != (jobs := self._stage.api.get(self._stage.path())["items"]):
                time.sleep(SETTLED_S)
            truth = Truth(
                kubeconfig=kubeconfig,
                namespace=TEAM,
                store=self._stage.folder / STORE,
                folder=self._stage.folder,
                jobs=jobs,
            )
            if truth.is_settled:
                return truth
            operator.thaw()
            time.sleep(AGAIN_S)
        raise AssertionError

    async def ask(self) -> float:
        """Ask on the page what another policy would do, and return the seconds until both futures are shown."""
        await self._reading.open("whatif")
        await self._until("document.querySelector('select')?.options.length > 1", TEXT)
        await self._page.evaluate(CHOOSE.replace("POLICY", json.dumps(OTHER)))
        began = time.monotonic()
        await self._page.evaluate("document.querySelector('form button').click()")
        await self._until("document.querySelectorAll('.future').length === 2", TEXT)
        took = time.monotonic() - began
        await self._page.evaluate("document.querySelector('h2').scrollIntoView()")
        await self._take_picture("futures")
        return took

    async def show_job(self) -> None:
        """Take a picture of the job whose GPUs have changed most."""
        items = self._stage.api.get(self._stage.path())["items"]
        going = [job for job in items if job.get("status", {}).get("phase") == "Running"]
        if going:
            job = max(going, key=lambda each: len(each["status"].get("history", ())))
            await self._reading.read_job(full_name(job), is_there=True)
            await self._page.evaluate("scrollTo(0, 0)")
            await self._take_picture("job")

    async def time_news(self, name: str, times: int) -> list[float]:
        """Submit jobs, and return the seconds until each of them is shown."""
        await self._reading.open(name)
        delays = []
        for number in range(times):
            job = f"late-{name}-{number}"
            await asyncio.to_thread(self._stage.submit, job, iterations=ITERATIONS[-1])
            began = time.monotonic()
            await self._until(f"{LINKS}.has('{TEAM}/{job}')", f"[...{LINKS}].join()")
            delays.append(time.monotonic() - began)
        return delays

    async def _until(self, condition: str, told: str) -> None:
        try:
            await self._page.until(condition)
        except AssertionError as error:
            await self._take_picture("in-vain")
            shown = await self._page.evaluate(told)
            raise click.ClickException(f"{error}: {shown}; {self._stage.tell()}") from error

    async def _take_picture(self, name: str) -> None:
        if self._pictures is None:
            return
        self._pictures.mkdir(parents=True, exist_ok=True)
        answer = await self._page.ask("Page.captureScreenshot", format="png")
        picture = Image.open(io.BytesIO(base64.b64decode(answer["data"]))).convert("RGB")
        picture.quantize(COLOURS).save(self._pictures / f"{name}.png", optimize=True)


class Sizes(NamedTuple):
    """How much of each there is."""

    jobs: int
    nodes: int
    frames: int
    news: int
    gpus: int
    waiting: int
    removed: int
    seconds: float
    """For which the processor time of the operator is measured, without and with viewers."""


async def look_at(
    house: House, stage: Stage, folder: Path, *, sizes: Sizes, chromium: str, pictures: Path | None
) -> list[Json]:
    """Look at the page of a cluster whose jobs come and go."""
    rows: list[Json] = []
    async with opened(chromium, house.address, folder / "profile") as page:
        looking = Looking(page, stage, jobs=sizes.jobs, pictures=pictures)
        first_s = await looking.log_in(house.tokens[VIEWER])
        began, before = time.monotonic(), cpu_seconds(house.server.pid)
        for name in VIEWS:
            say(f"opens the view {name}")
            rows.append(await looking.look(name, sizes.frames))
        rows.append(await looking.compare(house.plane.admin, "while jobs run"))
        say("asks what another policy would do, and waits for new jobs")
        asked_s = await looking.ask()
        await looking.show_job()
        delays = {
            f"{name}_news_s": await looking.time_news(name, sizes.news) for name in ("jobs", "now")
        }
        used = (cpu_seconds(house.server.pid) - before) / (time.monotonic() - began)
        await asyncio.to_thread(remove_some, stage, sizes.removed)
        rows.append(await looking.compare(house.plane.admin, "after some were removed"))
        rows.append(await count_leading(house, stage, "while jobs run", sizes.seconds))
        say("waits until all jobs have ended")
        await asyncio.to_thread(stage.wait, lambda: count_ended(stage, left=True) == 0)
        rows.append(await looking.compare(house.plane.admin, "when all jobs have ended"))
        rows.append(await count_leading(house, stage, "when all jobs have ended", sizes.seconds))
        # The browser tells of answers that are refusals: before the login, of logs, and of jobs that were removed.
        refusals = ("401", "/api/v1/logs/", "/api/v1/jobs/")
        errors = [said for said in page.complaints if not any(each in said for each in refusals)]
        if errors:
            raise click.ClickException(f"the console has errors: {errors}")
        rows.append(
            {
                "login_to_all_shown_s": round(first_s, 2),
                **{name: summarize(each) for name, each in delays.items()},
                "what_if_on_page_s": round(asked_s, 1),
                "console_errors": len(errors),
                "page_mb": round(max(map(memory_mb, find_renderers(page.browser))), 1),
                "server_mb": round(memory_mb(house.server.pid), 1),
                "server_core_%": round(100.0 * used, 1),
            }
        )
    return rows


def watch(folder: Path, *, sizes: Sizes, chromium: str, pictures: Path | None) -> list[Json]:
    """Let jobs come and go on a cluster, and look at its page."""
    nodes = {f"node-{number}": ON_A_NODE for number in range(sizes.nodes)}
    theirs = folder / "stage"
    theirs.mkdir(parents=True)
    with (
        inhabited(folder, controllers=True, store=theirs / STORE) as house,
        staged(house.plane, TEAM, theirs, nodes) as stage,
    ):
        stage.patience = LIMIT_S
        say(f"submits {sizes.jobs} jobs")
        stage.start_operator(settings=PATIENT)
        began = time.monotonic()
        for number in range(sizes.jobs):
            submit(stage, number)
        submitted_s = time.monotonic() - began

        say("waits until some jobs have ended")
        stage.wait(lambda: count_ended(stage) >= max(1, sizes.nodes))
        rows = asyncio.run(
            look_at(house, stage, folder, sizes=sizes, chromium=chromium, pictures=pictures)
        )
        size = {"jobs": sizes.jobs, "gpus": sizes.nodes * ON_A_NODE}
        return [{**size, "submitted_s": round(submitted_s, 1)}, *rows]


QUESTIONS: dict[str, Json] = {
    "cordon": {"cordon": "node-0"},
    "priority": {"job": f"{TEAM}/job-0", "priority": 10},
    "another": {"another": f"{TEAM}/job-0"},
    "policy": {"policy": "fifo"},
}


def _seconds(pid: int) -> float:
    """Return the processor time of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def suppose(folder: Path, *, gpus: int, waiting: int) -> list[Json]:
    """Ask what if on a cluster of a size, as the page does."""
    rows: list[Json] = []
    with inhabited(folder, controllers=False) as house:
        say(f"fills a control plane with the jobs of {gpus:,} GPUs")
        jobs = fill(house, gpus=gpus, waiting=waiting)
        for name in count(tuple(QUESTIONS), "asks: {}".format):
            question = QUESTIONS[name]
            began, before = time.monotonic(), _seconds(house.server.pid)
            status, told = house.suppose(VIEWER, question)
            row = {"what_if": name, "gpus": gpus, "jobs": jobs, "status": status}
            row["answer_s"] = round(time.monotonic() - began, 1)
            row["core_s"] = round(_seconds(house.server.pid) - before, 1)
            if status == 200:
                row["jobs_in_futures"] = [len(future["jobs"]) for future in told["futures"]]
            else:
                row["refusal"] = told["error"]
            rows.append(row)
    return rows


@click.command(help=__doc__)
@click.option("--full", is_flag=True, help="200 jobs on 48 GPUs, and questions at 4,000 GPUs.")
@click.option(
    "--pictures", type=click.Path(path_type=Path), help="A folder for pictures of the views."
)
@click.option("--part", type=click.Choice(["page", "what-if"]), help="Measure this part alone.")
@click.option("-o", "form", type=click.Choice(["table", "json"]), default="table")
def main(*, full: bool, pictures: Path | None, part: str | None, form: str) -> None:
    chromium = shutil.which("chromium") or ""
    if not chromium:
        click.echo("there is no chromium on the path: only the server is measured", err=True)
    sizes = (
        Sizes(200, 12, 240, 3, 4000, 200, 6, 80.0) if full else Sizes(12, 2, 60, 1, 64, 8, 2, 15.0)
    )
    rows: list[Json] = [{**describe_machine(), "load": round(os.getloadavg()[0], 1)}]
    with tempfile.TemporaryDirectory(prefix="dljob-page-") as temporary:
        folder = Path(temporary)
        if chromium and part != "what-if":
            rows += watch(folder / "watched", sizes=sizes, chromium=chromium, pictures=pictures)
        if part != "page":
            rows += suppose(folder / "filled", gpus=sizes.gpus, waiting=sizes.waiting)
    print_result(rows, form)


if __name__ == "__main__":
    run(main)
