"""The description of the page's API, and whether an answer is as the description has it."""

from collections.abc import Mapping
from typing import Any, Final

import yaml

from tests.sidecar.drivers import ROOT

API: Final[Mapping[str, Any]] = yaml.safe_load(
    (ROOT / "docs" / "page-api.yaml").read_text(encoding="utf-8")
)

TYPES: Final[Mapping[str, tuple[type, ...]]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
    "null": (type(None),),
}

KNOWN: Final = frozenset(
    ("description", "type", "required", "properties", "items", "enum", "minimum", "maximum")
)


def resolve(part: Any) -> Any:
    while "$ref" in part:
        reference = part["$ref"]
        part = API
        for step in reference.removeprefix("#/").split("/"):
            part = part[step]
    return part


def insist(method: str, path: str, status: int, document: Any) -> None:
    """Insist that an answer with JSON is as the description has it, and has no further fields."""
    answers = API["paths"][path][method.lower()]["responses"]
    answer = resolve(answers.get(str(status)) or answers[f"{status // 100}XX"])
    check(document, answer["content"]["application/json"]["schema"], f"{method} {path}")


def check(value: Any, schema: Any, where: str) -> None:
    """Insist that a value is as a schema has it; of the words of JSON Schema it knows those of this description."""
    schema = resolve(schema)
    assert not schema.keys() - KNOWN, (where, schema.keys() - KNOWN)
    kinds = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    fitting = [kind for kind in kinds if isinstance(value, TYPES[kind])]
    assert fitting, (where, value)
    assert not isinstance(value, bool) or fitting == ["boolean"], where
    assert value in schema.get("enum", [value]), (where, value)
    if isinstance(value, (int, float)):
        assert schema.get("minimum", value) <= value <= schema.get("maximum", value), where
    if isinstance(value, list):
        for number, each in enumerate(value):
            check(each, schema["items"], f"{where}[{number}]")
    if isinstance(value, dict) and "properties" in schema:
        assert set(schema.get("required", ())) <= value.keys(), (where, value)
        for name, each in value.items():
            assert name in schema["properties"], f"{where}: {name} is not described"
            check(each, schema["properties"][name], f"{where}.{name}")
