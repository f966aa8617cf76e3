"""The schema of a DLJob for Kubernetes: bounded, described, and the same as our own checks."""

import re
from collections.abc import Iterator
from typing import Any

import pytest

from dlcore.documents import jobfields, jobfile, jobschema
from dlcore.documents.language.records import Many, Record, Rule
from dlcore.documents.language.schemas import Form, Node, Text
from dlcore.model import Phase

SCHEMA = jobschema.openapi()


def iter_schemas(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    yield path, schema
    for name, inner in schema.get("properties", {}).items():
        yield from iter_schemas(inner, f"{path}.{name}")
    for part in ("items", "additionalProperties"):
        if part in schema:
            yield from iter_schemas(schema[part], f"{path}[{part}]")


def iter_nodes(node: Node) -> Iterator[Node]:
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


@pytest.mark.parametrize("path", ALL)
def test_every_string_list_map_and_number_has_a_bound(path: str):
    schema = ALL[path]
    wanted = BOUNDS.get(schema.get("type", ""), set())
    assert not wanted or wanted & schema.keys()
    assert "additionalProperties" not in schema or "maxProperties" in schema


@pytest.mark.parametrize("path", sorted(set(ALL) - {".metadata"}))
def test_every_field_has_a_type_and_teaches_something(path: str):
    schema = ALL[path]
    assert "type" in schema or "x-kubernetes-int-or-string" in schema
    assert schema["description"].endswith(".")
    assert schema["description"][0].isupper()


FORMS = sorted(
    {node.form for node in iter_nodes(jobschema.RUNNABLE) if isinstance(node, Text) and node.form},
    key=lambda form: form.pattern,
)


@pytest.mark.parametrize("form", FORMS)
def test_a_form_holds_the_whole_string_and_says_what_to_write(form: Form):
    # Kubernetes searches where Python's fullmatch would match.
    told = form.validation()
    assert told["rule"] == f"self.matches(r'^(?:{form.pattern})$')"
    assert "'" not in form.pattern
    assert told["message"].startswith("it ")
    assert "; " in told["message"]


def test_no_string_is_refused_by_a_pattern_that_would_only_show_itself():
    assert not any("pattern" in schema for schema in ALL.values())


def test_every_rule_has_a_name_of_its_own_and_words_for_kubernetes():
    rules = {rule.name: rule for rule in RULES}
    assert len(rules) == len({(rule.name, rule.cel) for rule in RULES})
    for rule in rules.values():
        assert rule.cel
        assert not rule.message.endswith(".")
        assert rule.remedy


def test_a_rule_of_kubernetes_names_its_field_and_the_remedy():
    (rule,) = [
        rule
        for rule in ALL[".spec.gpus"]["x-kubernetes-validations"]
        if rule.get("fieldPath") == ".requested"
    ]
    assert rule["message"] == (
        "requested is none of the numbers of GPUs that the job can run on;"
        " give one of them, or leave requested out for the largest"
    )


@pytest.mark.parametrize("path", [path for path in ALL if "x-kubernetes-validations" in ALL[path]])
def test_a_rule_blames_a_field_that_its_record_has(path: str):
    for rule in ALL[path]["x-kubernetes-validations"]:
        where = rule.get("fieldPath", "")
        assert f"{path}{where}" in ALL
        assert len(rule["message"]) < 2048
        assert "\n" not in rule["rule"]


def test_a_default_is_itself_allowed_and_leaves_nothing_to_complain_about():
    for node in iter_nodes(jobschema.RUNNABLE):
        if node.default is not None:
            assert list(node.problems(node.completed(node.default), "it")) == []


def test_a_template_keeps_the_fields_that_nobody_looks_into():
    pod = ALL[".spec.template.spec"]
    assert pod["x-kubernetes-preserve-unknown-fields"] is True
    assert pod["required"] == ["containers"]
    assert "x-kubernetes-preserve-unknown-fields" not in ALL[".spec"]


def test_what_runs_for_real_must_bring_its_pods():
    assert ALL[".spec"]["required"] == ["gpus", "training", "template"]
    auxiliary = ALL[".spec.auxiliaries[items]"]
    assert auxiliary["required"] == ["name", "template"]


def test_kubernetes_refuses_a_change_of_exactly_what_may_not_change():
    [change] = [rule for rule in SCHEMA["x-kubernetes-validations"] if "oldSelf" in rule["rule"]]
    fields = re.findall(r"self\.spec\.(\w+) == oldSelf\.spec\.(\w+)", change["rule"])
    assert fields == [(name, name) for name in jobschema.FIXED_FIELDS]
    free = set(jobschema.RUNNABLE.fields["spec"].openapi()["properties"])
    assert free - set(jobschema.FIXED_FIELDS) == {
        "gpus",
        "priority",
        "suspend",
        "ttlSecondsAfterFinished",
        "activeDeadlineSeconds",
        "backoffLimit",
    }


def test_the_phases_are_those_of_the_model():
    assert ALL[".status.phase"]["enum"] == [phase.value for phase in Phase]


def test_metadata_is_restricted_only_as_far_as_kubernetes_allows():
    assert SCHEMA["properties"]["metadata"] == {"type": "object"}
    [rule] = [rule for rule in SCHEMA["x-kubernetes-validations"] if "metadata" in rule["rule"]]
    assert "self.metadata.name.matches" in rule["rule"]
    assert rule["message"].startswith("metadata.name is no name that Kubernetes takes")


def test_the_schema_is_new_each_time_so_that_nobody_can_spoil_it():
    jobschema.openapi()["properties"].clear()
    jobschema.openapi()["properties"]["spec"]["properties"]["checkpoint"]["default"]["x"] = 1
    assert jobschema.openapi() == SCHEMA


def test_the_order_of_fields_is_the_one_people_write():
    names = list(ALL[".spec"]["properties"])
    assert names[: len(jobfields.FIELDS)] == list(jobfields.FIELDS)
    assert names[-1] == "template"
    least = {
        "spec": {"training": {"iterations": 1}, "gpus": {"max": 1}},
        "metadata": {"name": "a"},
        "kind": "DLJob",
        "apiVersion": "dljob.io/v1alpha1",
    }
    rendered = jobfile.render(jobfile.parse(least))
    assert list(rendered) == ["apiVersion", "kind", "metadata", "spec"]
    assert list(rendered["spec"]) == ["gpus", "training"]
