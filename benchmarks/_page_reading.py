"""The content of the page as its users see it: texts of its elements, and of the canvas the variables that it draws."""

import json
from collections.abc import Collection
from typing import Any

from addons.web.tests.devtools import Page

Json = dict[str, Any]

TITLES = {
    "lanes": "GPUs over time",
    "now": "Now",
    "jobs": "Jobs",
    "usage": "Where GPU time went",
    "whatif": "What if",
}

OPEN = (
    "[...document.querySelectorAll('nav button')].find((each) => each.textContent === NAME).click()"
)

# Preact keeps the tree of its components at the element into which it renders.
PAINTS = """
(() => {
  const find = (node) => {
    if (!node) return null;
    if (node.__c?.painter) return node.__c;
    for (const child of node.__k || []) { const found = find(child); if (found) return found; }
    return null;
  };
  return Object.getPrototypeOf(find(document.getElementById('page').__k)).choose;
})()
"""
"""A function of the view that draws GPUs over time."""

CELLS = "[...row.querySelectorAll('th, td')].map((each) => each.textContent)"
ROWS = f"(from) => [...from.querySelectorAll('tbody tr')].map((row) => {CELLS})"
TABLES = f"[...document.querySelectorAll('main table')].map({ROWS})"
NODES = """
[...document.querySelectorAll('.node')].map((node) => ({
  name: node.ariaLabel,
  type: node.querySelector('h3 .quiet').textContent,
  gpus: [...node.querySelectorAll('.gpu')].map((gpu) => gpu.getAttribute('aria-label')),
}))
"""
TITLE = "(document.querySelector('main h2')?.textContent ?? '')"
NOW = f"({{ title: {TITLE}, nodes: {NODES}, queue: (({ROWS})(document.querySelector('main'))) }})"
TOLD = """
({
  job: document.querySelector('.told h2')?.textContent ?? '',
  place: document.querySelector('.told > p.quiet')?.textContent ?? '',
  entry: document.querySelector('.told .entry')?.textContent ?? '',
})
"""

JOB = f"""
(() => {{
  const conditions = document.querySelector('[aria-label=Conditions]');
  const text = (each, part) => each.querySelector(part)?.textContent ?? '';
  return {{
    name: {TITLE},
    until: document.querySelector('header p').textContent.match(/ to ([^·]*[AP]M)/)?.[1] ?? '',
    facts: document.querySelector('main h2 + p')?.textContent ?? '',
    sentences: [...document.querySelectorAll('main section > p')].map((each) => each.textContent),
    curves: Object.fromEntries([...document.querySelectorAll('figure')].map((each) => [text(each, 'h3'), text(each, 'figcaption')])),
    conditions: conditions ? ({ROWS})(conditions) : [],
    history: [...document.querySelectorAll('.history .entry')].map((each) => ({{
      name: text(each, 'b'), at: text(each, 'time'), gpus: text(each, '.gpus'),
      sentences: [...each.querySelectorAll(':scope > p')].slice(1).map((each) => each.textContent),
    }})),
  }};
}})()
"""


ASKED = """
document.querySelector('[aria-label=Conditions]') !== null
|| document.querySelector('main').textContent.includes('Now: ')
"""
"""True when the page has the server's answer about a job."""


class Reading:
    """Reads the views of a page one after the other."""

    def __init__(self, page: Page) -> None:
        self._page = page

    async def open(self, view: str) -> None:
        await self._page.evaluate(OPEN.replace("NAME", json.dumps(TITLES[view])))

    async def renew(self) -> None:
        """Have the page ask its server now."""
        await self._page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")

    async def read_lanes(self) -> tuple[Json, list[Json]]:
        """Return the data that the canvas is drawn from, and its lanes."""
        await self.open("lanes")
        await self._page.until("document.querySelector('canvas')?.clientHeight > 0")
        seen = await self._see(PAINTS, ("data", "lanes"))
        return seen["data"], seen["lanes"]

    async def _see(self, function: str, names: Collection[str]) -> Json:
        """Return the values of variables that a function of the page sees."""
        found = await self._page.ask("Runtime.evaluate", expression=function)
        listed = await self._list_properties(found["result"]["objectId"])
        inner = {each["name"]: each["value"] for each in listed["internalProperties"]}
        scopes = (await self._list_properties(inner["[[Scopes]]"]["objectId"]))["result"]
        seen: Json = {}
        # The innermost scope comes first.
        for scope in scopes:
            held = (await self._list_properties(scope["value"]["objectId"]))["result"]
            for each in held:
                if each["name"] in names and each["name"] not in seen:
                    seen[each["name"]] = await self._copy(each["value"]["objectId"])
        return seen

    async def _list_properties(self, thing: str) -> Json:
        listed: Json = await self._page.ask(
            "Runtime.getProperties", objectId=thing, ownProperties=True
        )
        return listed

    async def _copy(self, thing: str) -> Any:
        copied = await self._page.ask(
            "Runtime.callFunctionOn",
            objectId=thing,
            functionDeclaration="function() { return this; }",
            returnByValue=True,
        )
        return copied["result"]["value"]

    async def read_block(self, lane: int, at: float) -> Json:
        """Return what the view tells of a GPU at a time, by the address of that place."""
        place = json.dumps({"view": "lanes", "gpu": str(lane), "at": f"{at:.1f}"})
        await self._page.evaluate(f"location.hash = new URLSearchParams({place})")
        await self._page.until("document.querySelector('.told h2') !== null")
        told: Json = await self._page.evaluate(TOLD)
        return told

    async def read_now(self) -> Json:
        await self.open("now")
        await self._page.until("document.querySelector('.map') !== null")
        told: Json = await self._page.evaluate(NOW)
        return told

    async def read_jobs(self) -> list[list[str]]:
        await self.open("jobs")
        await self._page.until("document.querySelector('tbody') !== null")
        [rows] = await self._page.evaluate(TABLES)
        found: list[list[str]] = rows
        return found

    async def read_usage(self) -> list[list[list[str]]]:
        await self.open("usage")
        await self._page.until("document.querySelector('.stack') !== null")
        tables: list[list[list[str]]] = await self._page.evaluate(TABLES)
        return tables

    async def read_job(self, name: str, *, is_there: bool) -> Json:
        """Read the view of a job, which asks its server about a job that ``is_there``."""
        place = json.dumps({"view": "jobs", "job": name})
        await self._page.evaluate(f"location.hash = new URLSearchParams({place})")
        shown = f"{TITLE} === {json.dumps(name)}"
        await self._page.until(f"{shown} && ({ASKED})" if is_there else shown)
        told: Json = await self._page.evaluate(JOB)
        return told
