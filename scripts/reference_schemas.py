"""
The pages of docs/reference that follow from schemas: the fields of a DLJob, and the APIs of the SideCar and the page.

scripts/write-reference writes them.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parent.parent

Schema = Mapping[str, Any]


def read_yaml(path: str) -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load((ROOT / path).read_text(encoding="utf-8"))
    return document


# --- the custom resource ------------------------------------------------------------------


def write_fields(crd: Schema) -> str:
    """Make the page of a DLJob's fields from the definition of the custom resource."""
    [version] = crd["spec"]["versions"]
    schema = version["schema"]["openAPIV3Schema"]
    lines = [
        f"# Fields of a {crd['spec']['names']['kind']}",
        "",
        f"`apiVersion: {crd['spec']['group']}/{version['name']}`. Users write `spec`, the operator writes `status`.",
        "`[]` is an item of a list, `{}` a value under a name of the user's choice.",
        "",
    ]
    for part in ("spec", "status"):
        lines += [f"## {part}", "", "| field | type | what it is |", "|---|---|---|"]
        lines += [
            f"| `{path}` | {kind_of(field)} | {in_cell(field.get('description', ''))} |"
            for path, field in fields_of(schema["properties"][part], part)
        ]
        lines.append("")
    return "\n".join(lines)


def fields_of(schema: Schema, path: str) -> Iterator[tuple[str, Schema]]:
    for name, field in schema.get("properties", {}).items():
        yield f"{path}.{name}", field
        yield from fields_of(field, f"{path}.{name}")
    for key, mark in (("items", "[]"), ("additionalProperties", "{}")):
        inner = schema.get(key)
        if isinstance(inner, dict):
            yield from fields_of(inner, path + mark)


def kind_of(schema: Schema) -> str:
    """Return the type of a field and its bounds, in a few words."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "anyOf" in schema or "oneOf" in schema:
        kinds = [kind_of(each) for each in schema.get("anyOf", schema.get("oneOf", ()))]
        return " or ".join(dict.fromkeys(kinds))
    named = schema.get("type", "any")
    kind = " or ".join(named) if isinstance(named, list) else named
    if isinstance(schema.get("items"), dict):
        kind = f"list of {kind_of(schema['items'])}"
    if "enum" in schema:
        kind = ", ".join(f"`{each}`" for each in schema["enum"])
    low, high = schema.get("minimum"), schema.get("maximum")
    if low is not None or high is not None:
        kind += f", {'' if low is None else low}–{'' if high is None else high}"
    if "default" in schema:
        kind += f", default `{json.dumps(schema['default'])}`"
    return kind


def in_cell(text: str) -> str:
    """Write a text so that it stays in one cell of a table."""
    plain = " ".join(text.split()).replace("``", "`")
    return plain.replace("|", "\\|").replace("<", "&lt;")


# --- APIs ---------------------------------------------------------------------------------


def write_api(document: Schema, *, door: str) -> str:
    """Make the page of an API from its OpenAPI document; ``door`` is the word for its tags."""
    info, parts = document["info"], document["components"]
    lines = [f"# API of the {info['title'].removeprefix('DLJob ')}", "", info["description"], ""]
    for tag in document["tags"]:
        lines += [f"- **{tag['name']}**: {tag['description']}"]
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            lines += ["", f"## {method.upper()} {path}", ""]
            lines += [f"{operation['summary']} {door}: {', '.join(operation['tags'])}.", ""]
            lines += list(write_operation(operation, parts["responses"]))
    lines += ["", "## Messages", ""]
    for name, schema in parts["schemas"].items():
        lines += [f"### {name}", "", in_cell(schema.get("description", "")), ""]
        lines += list(write_message(schema))
    return "\n".join(lines) + "\n"


def write_operation(operation: Schema, responses: Schema) -> Iterator[str]:
    body = operation.get("requestBody")
    if body is not None:
        for content, media in body["content"].items():
            yield f"The body is {kind_of(media['schema'])}, as `{content}`."
            yield ""
    if "parameters" in operation:
        yield from ("| parameter | type | what it is |", "|---|---|---|")
        for each in operation["parameters"]:
            yield f"| `{each['name']}` | {kind_of(each['schema'])} | {in_cell(each['description'])} |"
        yield ""
    yield from ("| status | answer |", "|---|---|")
    for status, answer in operation["responses"].items():
        known = responses[answer["$ref"].rpartition("/")[2]] if "$ref" in answer else answer
        kinds = [kind_of(media["schema"]) for media in known.get("content", {}).values()]
        yield f"| {status} | {in_cell(known['description'])} {', '.join(kinds)} |"
    yield ""


def write_message(schema: Schema) -> Iterator[str]:
    variants = schema.get("oneOf", schema.get("anyOf"))
    if variants is not None:
        for each in variants:
            inner = each.get("allOf", [each])
            yield f"- {', '.join(map(kind_of, inner))}"
        yield ""
    if "properties" in schema:
        required = set(schema.get("required", ()))
        yield from ("| field | type | what it is |", "|---|---|---|")
        for name, field in schema["properties"].items():
            must = "" if name in required else " (may be left out)"
            yield f"| `{name}` | {kind_of(field)}{must} | {in_cell(field.get('description', ''))} |"
        yield ""
