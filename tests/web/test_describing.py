"""The description of the API: it is the written one, has every path, and each answer is as it says."""

import asyncio
import json
import re
import sys

from dlweb.describing import SCHEMAS, describe_paths
from dlweb.serving import ROUTES
from tests.scripts import loaded
from tests.web.served import QUESTION, Told, served
from tests.web.test_live import NODES
from tests.web.test_queue_data import job

KINDS = {
    "boolean": (bool,),
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "array": (list,),
    "object": (dict,),
    "null": (type(None),),
}


def complain(schema, value, path=""):
    """List where a value is not as its schema says."""
    if "$ref" in schema:
        schema = SCHEMAS[schema["$ref"].rpartition("/")[2]]
    if "enum" in schema:
        return [] if value in schema["enum"] else [path]
    kinds = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    if not isinstance(value, tuple(each for kind in kinds for each in KINDS[kind])):
        return [path]
    if isinstance(value, list):
        return [each for item in value for each in complain(schema["items"], item, f"{path}[]")]
    if not isinstance(value, dict):
        return []
    known = schema.get("properties")
    problems = [f"{path}.{name}" for name in schema.get("required", ()) if name not in value]
    for name, each in value.items() if known is not None else ():
        problems += (
            complain(known[name], each, f"{path}.{name}") if name in known else [f"{path}.{name}"]
        )
    return problems


def test_the_written_description_is_this_one(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["write-web-api", "--check"])
    with loaded("write-web-api") as script:
        assert script.main() == 0, "run scripts/write-web-api"


def test_every_path_is_described():
    described = {path for path, methods in describe_paths().items() if "get" in methods}
    assert {re.sub(r":[^}]*", "", path) for path in ROUTES} == described


def test_answers_are_as_described():
    source = Told()
    source.nodes = NODES
    source.jobs = [
        job("large", ahead=0, expectedStart="2026-01-31T08:00:00Z"),
        job("other", ahead=1, unknownBecause="its speed is not known"),
        job("gives", phase="Adjusting", gives_to="large"),
    ]

    async def look():
        async with served(source) as ask:
            each = [
                (path, *of) for path, methods in describe_paths().items() for of in methods.items()
            ]
            for path, method, described in each:
                target = path.removeprefix("/").replace("{name}", "large")
                answer = await (ask(target) if method == "get" else ask.post(target, QUESTION))
                [(kind, content)] = described["responses"]["200"]["content"].items()
                assert (answer.status, answer.headers["Content-Type"]) == (
                    200,
                    f"{kind}; charset=utf-8",
                )
                if kind == "application/json":
                    assert complain(content["schema"], json.loads(answer.text)) == [], path

    asyncio.run(look())
