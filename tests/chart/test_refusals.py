"""A wrong value is refused before anything changes, with its name and the remedy."""

import pytest

from tests.chart.helms import CHART

pytestmark = pytest.mark.cluster

MONGODB = {"type": "mongodb"}
ADDRESS = {"url": "mongodb://host"}
SECRET = {"existingSecret": {"name": "theirs"}}
REFUSED = {
    "an unknown name": ({"replica": 2}, "additional properties 'replica' not allowed"),
    "none": ({"replicas": 0}, "at '/replicas': minimum: got 0, want 1"),
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
    "a setting that another value makes": (
        {"settings": {"pods": {"image": "x"}}},
        "value must be 'left out here: it is set by the value sidecar.image'",
    ),
    "a setting by its former name": (
        {"settings": {"notify": {"on": ["done"]}}},
        "at '/settings/notify/on': value must be 'left out here: its name is notify.events now'",
    ),
    "readers of a cloud's notices": (
        {"cloudNotices": {"enabled": True, "cloud": "aws"}},
        "at '/cloudNotices': value must be 'left out here: DLJob has no reader of notices on clusters",
    ),
    "a proxy without a secret": (
        {"web": {"proxy": {"userHeader": "X-User"}}},
        "value must be 'the name of a Secret where web.proxy.userHeader is given",
    ),
    "root": ({"podSecurity": {"user": 0}}, "at '/podSecurity/user': minimum: got 0, want 1"),
    "an amount that is none": (
        {"resources": {"limits": {"memory": "much"}}},
        "at '/resources/limits/memory': 'much' does not match pattern",
    ),
}


@pytest.mark.story
def test_wrong_value_is_refused_by_name(helm):
    for fault, (values, says) in REFUSED.items():
        said = helm.try_to("template", CHART, values=values)
        assert (said.code != 0, said.out) == (True, ""), fault
        assert says in said.err, fault
        # One fault causes one message.
        lines = [line for line in said.err.splitlines() if line.strip().startswith("- at")]
        assert len(lines) <= 3, fault


def test_values_of_a_parent_chart_are_accepted(helm):
    assert helm.render({"global": {"imageRegistry": "lab.example"}}).names("Deployment")
