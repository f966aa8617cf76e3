"""The schema of a DLJob for Kubernetes: bounded, described, and the same as our own checks."""

import re
from collections.abc import Iterator
from typing import Any

from dljob.core.documents import jobschema
from dljob_wire.kinds import Kind, Many, Record, Rule, Text

SCHEMA = jobschema.openapi()


def iter_schemas(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    yield path, schema
    for name, inner in schema.get("properties", {}).items():
        yield from iter_schemas(inner, f"{path}.{name}")
    for part in ("items", "additionalProperties"):
        if part in schema:
            yield from iter_schemas(schema[part], f"{path}[{part}]")


def iter_nodes(node: Kind) -> Iterator[Kind]:
    yield node
    if isinstance(node, Many):
        yield from iter_nodes(node.items)
    if isinstance(node, Record):
        for inner in node.fields.values():
            yield from iter_nodes(inner)


ALL = dict(iter_schemas(SCHEMA))
RULES: list[Rule] = [
    rule
    for node in iter_nodes(jobschema.RUNNABLE)
    if isinstance(node, Record)
    for rule in node.rules
]

BOUNDS = {
    "string": {"maxLength", "enum"},
    "array": {"maxItems"},
    "integer": {"minimum", "maximum"},
    "number": {"minimum", "maximum"},
}


def test_every_field_has_type_bound_and_description():
    for path, schema in ALL.items():
        wanted = BOUNDS.get(schema.get("type", ""), set())
        assert not wanted or wanted & schema.keys(), path
        assert "additionalProperties" not in schema or "maxProperties" in schema, path
        if path != ".metadata":
            assert "type" in schema or "x-kubernetes-int-or-string" in schema, path
            assert schema["description"].endswith("."), path
            assert schema["description"][0].isupper(), path


FORMS = {
    node.form for node in iter_nodes(jobschema.RUNNABLE) if isinstance(node, Text) and node.form
}


def test_forms_match_whole_strings_and_explain():
    for form in FORMS:
        # Kubernetes searches where Python's fullmatch would match.
        rule = form.validation()
        assert rule["rule"] == f"self.matches(r'^(?:{form.pattern})$')"
        assert "'" not in form.pattern
        assert rule["message"].startswith("it "), form.pattern
        assert "; " in rule["message"], form.pattern


def test_schema_uses_no_bare_pattern():
    assert not any("pattern" in schema for schema in ALL.values())


def test_rules_have_unique_names_and_messages():
    rules = {rule.name: rule for rule in RULES}
    assert len(rules) == len({(rule.name, rule.cel) for rule in RULES})
    for rule in rules.values():
        assert rule.cel
        assert not rule.message.endswith(".")
        assert rule.remedy


def test_rule_names_its_field_and_the_remedy():
    (rule,) = [
        rule
        for rule in ALL[".spec.gpus"]["x-kubernetes-validations"]
        if rule.get("fieldPath") == ".requested"
    ]
    assert rule["message"] == (
        "requested is none of the numbers of GPUs that the job can run on;"
        " give one of them, or leave requested out for the largest"
    )


def test_rule_blames_an_existing_field():
    for path, schema in ALL.items():
        for rule in schema.get("x-kubernetes-validations", ()):
            assert f"{path}{rule.get('fieldPath', '')}" in ALL, path
            assert len(rule["message"]) < 2048, path
            assert "\n" not in rule["rule"], path


def test_defaults_are_valid():
    for node in iter_nodes(jobschema.RUNNABLE):
        if node.default is not None:
            assert node.collect(node.default)[1] == []


def test_template_keeps_unknown_fields():
    pod = ALL[".spec.template.spec"]
    assert pod["x-kubernetes-preserve-unknown-fields"] is True
    assert pod["required"] == ["containers"]
    assert "x-kubernetes-preserve-unknown-fields" not in ALL[".spec"]


def test_pod_templates_are_required():
    assert ALL[".spec"]["required"] == ["gpus", "training", "template"]
    auxiliary = ALL[".spec.auxiliaries[items]"]
    assert auxiliary["required"] == ["name", "template"]


def test_only_fixed_fields_are_immutable():
    rules = [rule for rule in SCHEMA["x-kubernetes-validations"] if "oldSelf" in rule["rule"]]
    # The manager cannot change at all.
    [change] = [rule for rule in rules if "spec.managedBy" not in rule["rule"]]
    assert len(rules) == 2
    fields = re.findall(r"self\.spec\.(\w+) == oldSelf\.spec\.(\w+)", change["rule"])
    assert fields == [(name, name) for name in jobschema.FIXED_FIELDS]
    free = set(jobschema.RUNNABLE.fields["spec"].openapi()["properties"])
    assert free - set(jobschema.FIXED_FIELDS) == {
        *("gpus", "managedBy", "priority", "suspend"),
        *("ttlSecondsAfterFinished", "activeDeadlineSeconds", "backoffLimit"),
    }
