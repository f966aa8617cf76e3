"""A wrong value is refused before anything is changed, and what is said names it and what to do."""

import pytest

from tests.chart.helms import CHART
from tests.servers.binaries import BUILD_SECONDS

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(BUILD_SECONDS + 300.0)]

MONGODB = {"type": "mongodb"}
ADDRESS = {"url": "mongodb://host"}
SECRET = {"existingSecret": {"name": "theirs"}}
REFUSED = {
    "an unknown name": ({"replica": 2}, "additional properties 'replica' not allowed"),
    "an unknown name deep inside": (
        {"store": {"sqlite": {"class": "fast"}}},
        "at '/store/sqlite': additional properties 'class' not allowed",
    ),
    "none": ({"replicas": 0}, "at '/replicas': minimum: got 0, want 1"),
    "a word for a number": (
        {"replicas": "two"},
        "at '/replicas': got string, want null or integer",
    ),
    "no kind of store": (
        {"store": {"type": "postgres"}},
        "at '/store/type': value must be one of 'ephemeral', 'sqlite', 'mongodb', 'deployed'",
    ),
    "two that write one file": (
        {"replicas": 2, "store": {"type": "sqlite"}},
        "at '/replicas': value must be '1 where store.type is sqlite, because one process writes",
    ),
    "a server without an address": (
        {"store": MONGODB},
        "at '/store/mongodb': value must be 'an address where store.type is mongodb: give store",
    ),
    "a server that is named twice": (
        {"store": {**MONGODB, "mongodb": {**ADDRESS, **SECRET}}},
        "value must be 'one address: store.mongodb.url or store.mongodb.existingSecret.name, not",
    ),
    "a server that would not be asked": (
        {"store": {"mongodb": ADDRESS}},
        "at '/store/type': value must be 'mongodb where store.mongodb.url is given",
    ),
    "no address": (
        {"store": {**MONGODB, "mongodb": {"url": "http://host"}}},
        "at '/store/mongodb/url': 'http://host' does not match pattern",
    ),
    "a setting that is none": (
        {"settings": {"pace": {"period": 3}}},
        "at '/settings/pace': additional properties 'period' not allowed",
    ),
    "a setting of the wrong kind": (
        {"settings": {"limits": {"maxGpus": 4}}},
        "at '/settings/limits/maxGpus': got number, want object",
    ),
    "no mode": (
        {"settings": {"pool": {"mode": "shared"}}},
        "at '/settings/pool/mode': value must be one of 'dedicated', 'reserve'",
    ),
    "no policy": (
        {"settings": {"policy": "fastest"}},
        "at '/settings/policy': 'fastest' does not match pattern '^(adaptive|",
    ),
    "a setting that another value makes": (
        {"settings": {"pods": {"image": "x"}}},
        "value must be 'left out here: it is set by the value sidecar.image'",
    ),
    "a pull policy that Kubernetes does not know": (
        {"image": {"pullPolicy": "never"}},
        "at '/image/pullPolicy': value must be one of '', 'Always', 'IfNotPresent', 'Never'",
    ),
    "a digest that is none": ({"image": {"digest": "latest"}}, "at '/image/digest': 'latest' does"),
    "no name of a namespace": (
        {"namespaces": ["Team A"]},
        "at '/namespaces/0': 'Team A' does not match pattern",
    ),
    "a namespace twice": (
        {"namespaces": ["a", "a"]},
        "at '/namespaces': items at 0 and 1 are equal",
    ),
    "root": ({"podSecurity": {"user": 0}}, "at '/podSecurity/user': minimum: got 0, want 1"),
    "no end": (
        {"uninstall": {"jobs": "kill"}},
        "at '/uninstall/jobs': value must be one of 'keep', 'end'",
    ),
    "an amount that is none": (
        {"resources": {"limits": {"memory": "much"}}},
        "at '/resources/limits/memory': 'much' does not match pattern",
    ),
}


@pytest.mark.parametrize(("values", "says"), REFUSED.values(), ids=REFUSED)
def test_it_is_refused_and_named(helm, values, says):
    said = helm.try_to("template", CHART, values=values)
    assert said.code != 0
    assert said.out == ""
    assert says in said.err
    # One fault leads to one message, not to all messages that follow from it.
    assert len([line for line in said.err.splitlines() if line.strip().startswith("- at")]) <= 3


def test_lint_refuses_the_same(helm):
    said = helm.try_to("lint", CHART, values={"replica": 2})
    assert said.code != 0
    assert "additional properties 'replica' not allowed" in said.out + said.err


def test_the_values_of_a_chart_around_it_are_let(helm):
    assert helm.render({"global": {"imageRegistry": "lab.example"}}).names("Deployment")
