"""
The page at the size of a large cluster: 4,000 GPUs, 7 days and 20,000 changes, in headless Chromium.

A store is filled as a controller would have filled it, and the page's own server serves it. Measured are: the time until the
first picture, the frames while a day of it is moved through the picture, the memory of the page, and the processor time
of the server without a viewer, with one, and with fifty that ask every five seconds while the store changes.

Frames are counted as they come, and also by the processor time that the page's main thread takes for each, which
other programs on the machine do not change.
"""

import asyncio
import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from itertools import pairwise
from pathlib import Path
from statistics import mean
from typing import Any

import aiohttp
import click
from _many_lanes import SAMPLES, TOKEN, Size, Week, make_row
from _measuring import describe_machine, print_result, summarize
from _progress import count, read_line, run, say

from addons.web.tests.devtools import Page, opened
from dljob.core.recording.record import Progress
from dljob.store.opening import open_store

LOOK_S = 5.0
"""As often as the page asks."""
SAMPLE_S = 2.0
"""How often a job of the store reports progress."""
ZOOMS = 6
"""Presses of ``+`` before the picture is moved, which leave about a day in sight."""

PAINTED = """
new Promise((done) => {
  const look = () => document.querySelector('canvas')
    ? requestAnimationFrame(() => requestAnimationFrame(() => done(performance.now())))
    : requestAnimationFrame(look);
  look();
})
"""

MOVE = """
new Promise((done) => {
  const canvas = document.querySelector('canvas');
  const press = (key) => canvas.dispatchEvent(new KeyboardEvent('keydown', { key, bubbles: true }));
  for (let zoom = 0; zoom < ZOOMS; zoom += 1) press('+');
  const times = [];
  const step = (at) => {
    times.push(at);
    if (times.length > FRAMES) { done(times); return; }
    press(Math.floor(times.length / 30) % 2 ? 'ArrowRight' : 'ArrowLeft');
    canvas.dispatchEvent(new WheelEvent('wheel', { deltaY: Math.floor(times.length / 60) % 2 ? -35 : 35, clientX: 5 }));
    requestAnimationFrame(step);
  };
  requestAnimationFrame(step);
})
"""


@contextlib.contextmanager
def serving(store: Path) -> Iterator[tuple[int, str]]:
    """Serve a store in a process of its own; yields the process and the address."""
    server = Path(__file__).with_name("_many_lanes.py")
    with subprocess.Popen(
        [sys.executable, str(server), str(store)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        try:
            port = int(read_line(process.stdout, "the server of the page names its port"))
            yield process.pid, f"http://127.0.0.1:{port}/"
        finally:
            process.stdin.close()


def cpu_seconds(pid: int) -> float:
    """Return the processor time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def memory_mb(pid: int) -> float:
    """Return the memory that a process shares with no other one."""
    text = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="utf-8")
    kib = [int(line.split()[1]) for line in text.splitlines() if line.startswith("Private_")]
    return sum(kib) / 1024.0


def find_renderers(browser: int) -> list[int]:
    """Find the processes of a browser that draw pages."""
    parents = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, ValueError):
            stat = (folder / "stat").read_text(encoding="utf-8")
            parents[int(folder.name)] = int(stat.rpartition(")")[2].split()[1])
    found = {browser}
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return [pid for pid in found if b"--type=renderer" in Path(f"/proc/{pid}/cmdline").read_bytes()]


async def _main_thread_seconds(page: Page) -> float:
    metrics = (await page.ask("Performance.getMetrics"))["metrics"]
    return float(next(each["value"] for each in metrics if each["name"] == "TaskDuration"))


async def look(address: str, chromium: str, frames: int, profile: Path) -> dict[str, Any]:
    """Open the page, and move what it shows; the browser's children write into ``profile`` a little longer."""
    async with opened(chromium, f"{address}#token={TOKEN}", profile) as page:
        first = await page.evaluate(PAINTED)
        await page.ask("Performance.enable", timeDomain="threadTicks")
        before = await _main_thread_seconds(page)
        script = MOVE.replace("FRAMES", str(frames)).replace("ZOOMS", str(ZOOMS))
        times = await page.evaluate(script)
        used = await _main_thread_seconds(page) - before
        gaps = [later - earlier for earlier, later in pairwise(times)]
        return {
            "first_picture_s": round(first / 1000.0, 3),
            "frames_per_s": round(1000.0 / mean(gaps), 1),
            "frame_ms": summarize(gaps),
            "main_thread_ms_per_frame": round(1000.0 * used / frames, 2),
            "page_mb": round(max(map(memory_mb, find_renderers(page.browser))), 1),
        }


async def _view(session: aiohttp.ClientSession, address: str, until: float) -> int:
    """Ask as the page does; returns the bytes that came."""
    headers = {"Authorization": f"Bearer {TOKEN}"}
    count = 0
    while time.monotonic() < until:
        async with session.get(f"{address}api/v1/page", headers=headers) as answer:
            count += len(await answer.read())
            headers["If-None-Match"] = answer.headers["ETag"]
        await asyncio.sleep(LOOK_S)
    return count


@contextlib.asynccontextmanager
async def _going_on(store: Path) -> AsyncIterator[None]:
    """Let a job report progress now and then, as a controller writes it."""

    async def write() -> None:
        opened_store = open_store(str(store), environment={})
        try:
            for number in range(10**9):
                await asyncio.sleep(SAMPLE_S)
                line = Progress(at=time.time(), job="team-0/train-0-0", iteration=float(number))
                opened_store.record([make_row(line, f"now-{number}")])
        finally:
            opened_store.close()

    task = asyncio.create_task(write())
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def count_cost(
    store: Path, pid: int, address: str, *, viewers: int, seconds: float
) -> dict[str, Any]:
    """Have that many viewers, and return what they cost the server."""
    async with (
        _going_on(store),
        aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0), auto_decompress=False
        ) as session,
    ):
        began, before = time.monotonic(), cpu_seconds(pid)
        until = began + seconds
        sizes = await asyncio.gather(*(_view(session, address, until) for _ in range(viewers)))
        await asyncio.sleep(max(0.0, until - time.monotonic()))
        share = (cpu_seconds(pid) - before) / (time.monotonic() - began)
    return {
        "viewers": viewers,
        "core_%": round(100.0 * share, 2),
        "mb_per_viewer_and_minute": round(
            sum(sizes) / 1e6 / max(1, viewers) / (time.monotonic() - began) * 60.0, 2
        ),
    }


async def measure(size: Size, folder: Path, chromium: str, *, frames: int, seconds: float) -> Any:
    store = folder / "store.db"
    say(f"fills a store with {size.changes:,} changes")
    week = Week(size, time.time())
    week.write(store)
    rows: list[dict[str, Any]] = []
    with serving(store) as (pid, address):
        say("waits until the server has read the store")
        began = time.monotonic()
        # The first viewer after a start waits until the store is read; all others get what is known.
        async with aiohttp.ClientSession(auto_decompress=False) as session:
            received = await _view(session, address, time.monotonic() + 0.001)
        rows.append(
            {
                **describe_machine(),
                "gpus": size.gpus,
                "days": size.days,
                "changes": len(week.history),
                "samples": SAMPLES,
                "store_read_s": round(time.monotonic() - began - LOOK_S, 2),
                "answer_mb": round(received / 1e6, 2),
            }
        )
        if chromium:
            say("moves the picture in Chromium")
            rows.append(await look(address, chromium, frames, folder / "profile"))
        for viewers in count((0, 1, 50), "{} viewers".format):
            cost = await count_cost(store, pid, address, viewers=viewers, seconds=seconds)
            rows.append(cost)
        rows.append({"server_mb": round(memory_mb(pid), 1)})
    return rows


@click.command(help=__doc__)
@click.option("--gpus", type=click.IntRange(16), default=4000, show_default=True)
@click.option("--days", type=click.FloatRange(0.1), default=7.0, show_default=True)
@click.option("--changes", type=click.IntRange(500), default=20_000, show_default=True)
@click.option("--frames", type=click.IntRange(10), default=240, show_default=True)
@click.option(
    "--seconds",
    type=click.FloatRange(1.0),
    default=20.0,
    show_default=True,
    help="Of each number of viewers; the server reads the store again every few minutes at most.",
)
@click.option("-o", "form", type=click.Choice(["table", "json"]), default="table")
def main(*, gpus: int, days: float, changes: int, frames: int, seconds: float, form: str) -> None:
    chromium = shutil.which("chromium") or ""
    if not chromium:
        click.echo("there is no chromium on the path: only the server is measured", err=True)
    with tempfile.TemporaryDirectory() as folder:
        size = Size(gpus, days, changes)
        rows = asyncio.run(measure(size, Path(folder), chromium, frames=frames, seconds=seconds))
    print_result(rows, form)


if __name__ == "__main__":
    run(main)
