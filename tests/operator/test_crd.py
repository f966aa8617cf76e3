"""The custom resource follows from the schema, and holds exactly what the operator writes."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from dljob.control.situation.status import Status
from dljob.control.situation.status_documents import read_status, write_status
from dljob.control.situation.status_schema import LONGEST_MESSAGE, STATUS
from dljob.core.model import Phase
from dljob.core.predicting.predictor import Span
from dljob.operator.jobs import crd, entries
from dljob.operator.jobs.columns import COLUMNS, with_columns
from dljob_wire.kinds import Kind, Many, Record
from tests.core.test_jobfile_schema import BOUNDS, iter_schemas
from tests.operator.manifests import make_manifest, path_of
from tests.servers.api import Api, Json, Refused
from tests.servers.controlplane import ControlPlane
from tests.statuses import make_full_status

ROOT = Path(__file__).resolve().parents[2]
PAST: Json = {
    "phase": "Running",
    "history": [{"at": "2026-01-31T12:00:00Z", "kind": "start", "costSeconds": 0.5, "how": "live"}],
    "allocation": {"generation": 1, "gpus": 1, "nodes": [{"name": "n9", "gpuIds": [0]}]},
}
QUEUE = {"ahead": 2, "expectedStart": "2026-01-31T12:00:00.000Z", "unknownBecause": "of it"}
FULL: Json = entries.status_document(
    make_full_status(),
    epoch=4,
    generation=7,
    remaining=Span(5.0, 4.0, 6.0),
    queue=QUEUE,
    before=PAST,
)


def test_installed_definition_matches_the_schema():
    written = yaml.safe_load((ROOT / "crds" / crd.FILE).read_text(encoding="utf-8"))
    assert written == crd.definition(), "run scripts/write-crd"


def test_columns_are_those_of_dljob_get():
    narrow = [column["name"].upper() for column in COLUMNS if not column.get("priority")]
    assert narrow == ["PHASE", "GPUS", "PROGRESS", "SPEED", "ETA", "RESHAPES", "AGE"]


def test_status_fields_are_typed_bounded_and_described():
    for path, schema in iter_schemas(STATUS.openapi()):
        wanted = BOUNDS.get(schema["type"], set())
        assert not wanted or wanted & schema.keys(), path
        assert schema["description"].endswith("."), path
        assert "x-kubernetes-preserve-unknown-fields" not in schema, path


def names_in(node: Kind, path: str = "") -> set[str]:
    if isinstance(node, Many):
        return names_in(node.items, path)
    if not isinstance(node, Record):
        return {path}
    return {
        inner for name, field in node.fields.items() for inner in names_in(field, f"{path}.{name}")
    }


def names_of(document: Any, path: str = "") -> set[str]:
    if isinstance(document, list):
        return {name for item in document for name in names_of(item, path)}
    if not isinstance(document, dict):
        return {path}
    return {
        inner for name, value in document.items() for inner in names_of(value, f"{path}.{name}")
    }


def test_schema_has_exactly_the_written_fields():
    full = with_columns(write_status(make_full_status(), remaining=Span(4321.0, 4000.0, 5000.0)))
    document = {**FULL, "progress": full["progress"]}
    assert names_of(document) == names_in(STATUS)
    assert STATUS.collect(document)[1] == []


def test_shown_fields_are_ignored_when_read():
    assert read_status(FULL) == make_full_status()


@pytest.mark.parametrize(
    ("status", "remaining", "shown"),
    [
        (Status(), None, ("-", "-", "-", "-")),
        (
            Status(phase=Phase.RUNNING, iteration=7, speed=5.14),
            None,
            ("7 it", "5.14 it/s", "-", "-"),
        ),
        (
            Status(phase=Phase.RUNNING, iteration=31, iterations_total=100.0, speed=0.5),
            Span(5120.0, 4000.0, 6000.0),
            ("31%", "0.5 it/s", "85m", "-"),
        ),
        (
            Status(phase=Phase.RUNNING, iteration=9999, iterations_total=10000.0),
            Span(3.0, 3.0, 3.0),
            ("99.9%", "-", "3s", "-"),
        ),
        # A guess until the speed is measured; none for a job that fails again and again.
        (
            Status(phase=Phase.RUNNING, iteration=31, iterations_total=100.0, speed=0.5),
            Span(float("inf"), 0.0, 140.0),
            ("31%", "0.5 it/s", "~0s-2m20s", "-"),
        ),
        (
            Status(phase=Phase.RUNNING, iteration=9999, iterations_total=10000.0, failures=2),
            Span(3.0, 3.0, 3.0),
            ("99.9%", "-", "-", "-"),
        ),
    ],
)
def test_figures_are_shown_for_people(status, remaining, shown):
    document = with_columns(write_status(status, remaining=remaining))
    assert tuple(document["shown"].values()) == shown


def test_gpus_are_shown_in_ranges_by_node():
    nodes = [{"name": "a", "gpuIds": [0, 1, 2, 5]}, {"name": "b", "gpuIds": [3]}]
    document = with_columns({"phase": "Running", "allocation": {"nodes": nodes}})
    assert document["shown"]["allocation"] == "a[0-2,5] b[3]"


@pytest.fixture
def job(api: Api, namespace: str) -> str:
    api.post(path_of(namespace), make_manifest("job"))
    return path_of(namespace, "job")


MEANINGLESS: list[tuple[Json, str]] = [
    ({"phase": "Dreaming"}, "status.phase"),
    ({"reshapes": -1}, "status.reshapes"),
    ({"progress": {"fraction": 1.5}}, "status.progress.fraction"),
    ({"conditions": [{"type": "Finished"}]}, "status.conditions[0].reason"),
    ({"message": "x" * (LONGEST_MESSAGE + 1)}, "status.message"),
    ({"startedAt": "yesterday"}, "status.startedAt"),
]


@pytest.mark.cluster
@pytest.mark.story
def test_whole_status_is_kept_and_nonsense_refused(api: Api, job: str):
    assert api.merge(f"{job}/status", {"status": FULL})["status"] == FULL
    assert api.get(job)["status"] == FULL
    for status, field in MEANINGLESS:
        with pytest.raises(Refused) as refused:
            api.merge(f"{job}/status", {"status": status})
        assert field in {cause["field"] for cause in refused.value.causes}


@pytest.mark.cluster
def test_definition_is_accepted_without_a_warning(cluster: ControlPlane, tmp_path: Path):
    said = cluster.kubectl.try_to("apply", "--dry-run=server", "-f", ROOT / "crds" / crd.FILE)
    assert (said.code, said.err) == (0, "")
    definition = cluster.kubectl("get", "crd", crd.NAME, "-o", "yaml")
    conditions = {
        each["type"]: each["status"] for each in yaml.safe_load(definition)["status"]["conditions"]
    }
    assert conditions["Established"] == "True"
    assert conditions.get("NonStructuralSchema", "False") == "False"
