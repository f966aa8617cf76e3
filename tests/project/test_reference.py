"""The reference is what the code says now, and names everything that a user may meet."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import click
import pytest
import yaml

import dljob.api
from dljob import training
from dljob.cli.main import cli
from dljob.control.settings import Loaded
from dljob.local.setup import LocalSettings
from dljob.operator.settings import OperatorSettings
from tests.scripts import loaded

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "docs" / "reference"

WATCHED = (
    "operator/dljob/control",
    "operator/dljob/operator",
    "operator/dljob/local/pods",
    "operator/dljob/local/jobs",
    "operator/dljob/core/model/causes.py",
    "addons/gangs/dljob_gangs/members.py",
)
"""Where reasons are made, in addition to the causes of decisions."""
NO_REASONS = {
    # Kubernetes' own words, in what is read or built.
    *("AcceleratedHardwareReady", "GpuHealthy", "GPUHealthy", "Ready", "Unknown", "PodScheduled"),
    *(
        "DisruptionTarget",
        "EvictionByEvictionAPI",
        "PreemptionByScheduler",
        "Error",
        "True",
        "False",
    ),
    *("DeletionByTaintManager", "DeletionByPodGC", "ContainerStatusUnknown", "ContainerCreating"),
    *("PodInitializing", "ErrImagePull", "NoSchedule", "NoExecute", "Exists", "In", "Node", "Pod"),
    *("OnFailure", "Memory", "Mi", "RuntimeDefault", "Succeeded", "Failed", "Namespaced", "List"),
    *("CustomResourceDefinition", "ToBeDeletedByClusterAutoscaler"),
    # Kueue's own words.
    *("Preempted", "NodeFailures", "NoReservation", "Requeued", "PodsReady", "QuotaReserved"),
    *("Inadmissible", "Deactivated", "Workload", "ResourceFlavor", "Never", "WaitForStart"),
    # Columns of kubectl, phases, and states of checkpoints and pods.
    *("Age", "Ahead", "Allocation", "Failures", "GPUs", "Max", "Options", "Phase", "Priority"),
    *("Progress", "Reason", "Reshapes", "Speed", "Starts", "Completed", "Lost", "Ended"),
    *("Pending", "Up", "Removed"),
    # Names of types in annotations.
    *("DecisionNumber", "JobInScene", "JobPod", "JobsFile", "PodKey", "PodTimes", "PortRange"),
    *("Reading", "Registry", "Scene", "Settings", "Stamp", "StartNumber", "Status", "Ticket"),
    *("Tree", "Unnamed", "Outcome"),
}


@pytest.fixture(scope="module")
def reference() -> Iterator[ModuleType]:
    with loaded("write-reference") as module:
        yield module


def read(name: str) -> str:
    return (FOLDER / name).read_text(encoding="utf-8")


def first_cells(name: str) -> dict[str, str]:
    """Return the rows of all tables of a page by the name in their first cell."""
    rows = re.findall(r"^\| `([^`]+)` \| (.*) \|$", read(name), re.MULTILINE)
    return dict(rows)


def test_each_page_follows_the_code(reference: ModuleType) -> None:
    stale = [name for name, text in reference.made().items() if read(name) != text]
    assert stale == [], "run scripts/write-reference"


def test_it_has_each_verb_and_each_option() -> None:
    sections = dict(
        re.findall(
            r"^### (dljob .+?)\n(.*?)(?=^##|\Z)", read("command.md"), re.MULTILINE | re.DOTALL
        )
    )
    commands = dict(iter_commands(cli, "dljob"))
    assert len(commands) > 40
    assert set(sections) == set(commands)
    for path, command in commands.items():
        names = {name for each in command.params for name in each.opts if name.startswith("--")}
        assert names <= set(re.findall(r"--[a-z][\w-]*", sections[path])), path


def iter_commands(command: click.Command, path: str) -> Iterator[tuple[str, click.Command]]:
    if path != "dljob":
        yield path, command
    if isinstance(command, click.Group):
        for name in command.list_commands(click.Context(command)):
            below = command.get_command(click.Context(command), name)
            assert below is not None
            yield from iter_commands(below, f"{path} {name}")


def test_it_has_each_setting_with_a_meaning() -> None:
    rows = first_cells("settings.md")
    trees: tuple[Any, ...] = (OperatorSettings(), LocalSettings())
    settings = {each.path for tree in trees for each in Loaded(tree, {}).described()}
    assert set(rows) == settings
    assert [path for path, row in rows.items() if not row.rpartition(" | ")[2].strip()] == []


def test_it_has_each_value_of_the_chart() -> None:
    values = yaml.safe_load((ROOT / "manifests/chart/values.yaml").read_text(encoding="utf-8"))
    rows = first_cells("chart.md")
    for path in iter_leaves(values, ""):
        assert any(path == row or path.startswith(f"{row}.") for row in rows), path


def iter_leaves(tree: Any, path: str) -> Iterator[str]:
    if isinstance(tree, dict) and tree:
        for name, below in tree.items():
            yield from iter_leaves(below, f"{path}.{name}".lstrip("."))
    else:
        yield path


def test_it_has_each_metric() -> None:
    rows = first_cells("metrics.md")
    for folder in ("operator/dljob/control", "addons/gangs"):
        for path in (ROOT / folder).rglob("*.py"):
            named = re.findall(r'"(dljob_[a-z_]+[a-z])"', path.read_text(encoding="utf-8"))
            assert set(named) <= set(rows), path
    assert len([name for name in rows if name.startswith("dljob_sidecar_gpu")]) == 3


def test_it_has_each_reason_of_the_code_and_no_other() -> None:
    said = set(first_cells("reasons.md"))
    table = yaml.safe_load((ROOT / "scripts/reasons.yaml").read_text(encoding="utf-8"))
    known = {name for reasons in table.values() for name in reasons}
    assert known <= said
    in_code = {word for path in WATCHED for word in iter_words(ROOT / path)}
    assert in_code - said - NO_REASONS == set(), "name it in scripts/reasons.yaml"
    everywhere = {
        word for folder in ("operator", "sidecar", "addons") for word in iter_words(ROOT / folder)
    }
    assert known - everywhere == set()


def iter_words(path: Path) -> Iterator[str]:
    """Yield each word of the code that is written as a reason is."""
    for file in [path] if path.is_file() else path.rglob("*.py"):
        nodes = ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        texts = (node.value for node in nodes if isinstance(node, ast.Constant))
        words = (text for text in texts if isinstance(text, str))
        yield from (word for word in words if re.fullmatch(r"[A-Z][A-Za-z]*[a-z][A-Za-z]*", word))


def test_each_reason_has_meaning_and_remedy() -> None:
    table = yaml.safe_load((ROOT / "scripts/reasons.yaml").read_text(encoding="utf-8"))
    for reasons in table.values():
        for name, text in reasons.items():
            assert re.fullmatch(r"\S.*\.\n\S.*\.", text), name


def test_it_has_each_public_name_of_python() -> None:
    titles = set(re.findall(r"^### (.+)$", read("python.md"), re.MULTILINE))
    assert titles == {*dljob.api.__all__, *(f"training.{name}" for name in training.__all__)}


def test_it_has_each_request_to_dljob_up() -> None:
    rows = re.findall(r"^\| `([A-Z, `]+) (/\S+?)[\[?`]", read("machine-api.md"), re.MULTILINE)
    said = {(way, path) for ways, path in rows for way in re.findall("[A-Z]+", ways)}
    served = set()
    for file in (ROOT / "operator/dljob/local/api").rglob("*.py"):
        text = file.read_text(encoding="utf-8").replace(
            "(gpu,", '("/v1/nodes/{node}/gpus/{gpu}/cordon",'
        )
        found = re.findall(r'web\.(get|post|put|delete)\("([^"]+)"', text)
        served |= {
            (way.upper(), re.sub(r"\{(\w+)\}", lambda m: m[1].upper(), path)) for way, path in found
        }
    assert said == served


def test_the_page_of_a_dljob_explains_each_field_of_the_definition(reference: ModuleType) -> None:
    crd = yaml.safe_load((ROOT / "crds" / "dljobs.dljob.io.yaml").read_text(encoding="utf-8"))
    names = re.findall(
        r"^\| `(?:spec|status)\.([^`]+)` \| ([^|]+) \|",
        reference.reference_schemas.write_fields(crd),
        re.MULTILINE,
    )
    assert {"gpus.options", "template.spec", "checkpoint"} <= {name for name, _ in names}
    properties = count_properties(crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"])
    # All but apiVersion, kind, metadata, and the two parts themselves.
    assert len(names) == properties - 5


def count_properties(schema: object) -> int:
    if not isinstance(schema, dict):
        return 0
    inner = [*schema.get("properties", {}).values()]
    nested = [*inner, schema.get("items"), schema.get("additionalProperties")]
    return len(inner) + sum(map(count_properties, nested))


@pytest.mark.parametrize("name", ["openapi.yaml", "page-api.yaml"])
def test_the_page_of_an_api_has_each_path_and_each_message(
    reference: ModuleType, name: str
) -> None:
    api = yaml.safe_load((ROOT / "docs" / name).read_text(encoding="utf-8"))
    page = reference.reference_schemas.write_api(api, door="Door")
    titles = set(re.findall(r"^##+ (.+)$", page, re.MULTILINE))
    assert {f"{m.upper()} {path}" for path, ms in api["paths"].items() for m in ms} <= titles
    assert set(api["components"]["schemas"]) <= titles
