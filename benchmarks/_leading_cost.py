"""The processor time of the operator that leads, without viewers of the page and with fifty."""

import asyncio
import time
from statistics import mean
from typing import Any

import aiohttp
from _inhabited_cluster import VIEWER
from _progress import say
from lanes import LOOK_S, cpu_seconds

from addons.web.tests.portal.houses import House
from tests.operator.stages import Stage

Json = dict[str, Any]

VIEWERS = 50
WINDOWS = 4
"""How often the viewers come and go, because the operator's own work changes meanwhile."""
ASKED = ("page", "nodes", "queue")


async def count_leading(house: House, stage: Stage, moment: str, seconds: float) -> Json:
    """Measure for these seconds without viewers, and for as many with them."""
    say(f"measures the operator without and with {VIEWERS} viewers {moment}")
    [operator] = stage.operators
    shares: dict[bool, list[float]] = {False: [], True: []}
    for _ in range(WINDOWS):
        for has_viewers, share in shares.items():
            began, before = time.monotonic(), cpu_seconds(operator.pid)
            until = began + seconds / WINDOWS
            if has_viewers:
                await asyncio.gather(*(_view(house, until) for _ in range(VIEWERS)))
            await asyncio.sleep(max(0.0, until - time.monotonic()))
            used = (cpu_seconds(operator.pid) - before) / (time.monotonic() - began)
            share.append(100.0 * used)
    without, with_viewers = (mean(each) for each in shares.values())
    row = {
        "operator": moment,
        "viewers": VIEWERS,
        "core_%_without": [round(each, 2) for each in shares[False]],
        "core_%_with": [round(each, 2) for each in shares[True]],
        "core_%_more": round(with_viewers - without, 2),
    }
    say(str(row))
    return row


async def _view(house: House, until: float) -> None:
    """Ask as the page does."""
    headers = {"Authorization": f"Bearer {house.tokens[VIEWER]}"}
    tags: dict[str, str] = {}
    timeout = aiohttp.ClientTimeout(240.0)
    async with aiohttp.ClientSession(house.address, headers=headers, timeout=timeout) as session:
        while time.monotonic() < until:
            for path in ASKED:
                await _ask(session, path, tags)
            await asyncio.sleep(min(LOOK_S, max(0.0, until - time.monotonic())))


async def _ask(session: aiohttp.ClientSession, path: str, tags: dict[str, str]) -> None:
    known = {"If-None-Match": tags[path]} if path in tags else {}
    async with session.get(f"/api/v1/{path}", headers=known) as answer:
        await answer.read()
        assert answer.status in (200, 304), answer.status
        tags[path] = answer.headers["ETag"]
