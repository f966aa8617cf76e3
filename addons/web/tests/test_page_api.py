"""The description of the page's API is of the routes that there are, and of no others."""

import re
from collections.abc import Iterator
from typing import Any, cast

from aiohttp import web

from addons.web.tests.page_api import API, KNOWN, resolve
from addons.web.tests.served import TOKEN, Told
from dljob_web.guarding import Guard
from dljob_web.portal.portal import HEALTH, Portal
from dljob_web.serving import Server


def routes(application: web.Application) -> set[tuple[str, str]]:
    found = set()
    for route in application.router.routes():
        assert route.resource is not None
        if route.method != "HEAD":
            found.add((route.method, re.sub(r"\{(\w+):.*?\}", r"{\1}", route.resource.canonical)))
    return found


def described(tag: str) -> set[tuple[str, str]]:
    return {
        (method.upper(), path)
        for path, methods in API["paths"].items()
        for method, operation in methods.items()
        if tag in operation["tags"]
    }


def test_each_request_is_described_and_no_other():
    machine = Server(Told()).application(Guard(TOKEN, loopback=True))
    assert routes(machine) - {("GET", "/")} == described("machine")
    cluster = Portal(cast("Any", None), cast("Any", None)).application()
    assert routes(cluster) - {("GET", "/"), ("GET", HEALTH)} == described("cluster")


def iter_references(part: Any) -> Iterator[Any]:
    if isinstance(part, dict):
        if "$ref" in part:
            yield part
        part = list(part.values())
    if isinstance(part, list):
        for each in part:
            yield from iter_references(each)


def test_all_that_is_referred_to_is_there_and_all_else_is_used():
    references = list(iter_references(API))
    assert all(resolve(each) for each in references)
    used = {each["$ref"].rpartition("/")[2] for each in references}
    schemas = API["components"]["schemas"]
    assert used == {*API["components"]["responses"], *schemas}
    fields = [each for schema in schemas.values() for each in schema.get("properties", {}).values()]
    assert {key for each in fields for key in each} <= {"$ref", *KNOWN}
