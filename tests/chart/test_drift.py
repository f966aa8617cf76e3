"""The files that are generated from or for the chart are up to date; every value is explained."""

import json
import subprocess
import sys

import pytest
import yaml

from tests.chart.helms import CHART
from tests.servers.binaries import HELM, demand
from tests.sidecar.drivers import ROOT

pytestmark = pytest.mark.cluster

SCRIPT = ROOT / "scripts" / "write-manifests"


def test_manifests_match_the_chart():
    helm = demand(HELM)["helm"]
    command = [sys.executable, str(SCRIPT), "--check", f"--helm={helm}"]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240.0)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", ""), "run scripts/write-manifests"


def iter_described(schema, path):
    """Every property that the schema describes, with its path."""
    for name, described in schema.get("properties", {}).items():
        yield f"{path}{name}", described
        yield from iter_described(described, f"{path}{name}.")


def test_values_and_schema_match():
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    schema = json.loads((CHART / "values.schema.json").read_text())

    def compare(values, schema, path):
        # The schema also refuses names that are gone, with the reason.
        gone = {name for name, each in schema["properties"].items() if "const" in each}
        names = set(schema["properties"]) - gone - ({"global"} if not path else set())
        assert set(values) == names, path
        for name, value in values.items():
            described = schema["properties"][name]
            assert described["description"].endswith("."), f"{path}{name}"
            if "properties" in described and f"{path}{name}" != "settings":
                compare(value, described, f"{path}{name}.")

    compare(values, schema, "")


def test_schema_allows_no_unknown_names():
    schema = json.loads((CHART / "values.schema.json").read_text())
    loose = [
        path
        for path, described in iter_described(schema, "")
        if "properties" in described and described.get("additionalProperties") is not False
    ]
    assert loose == []
