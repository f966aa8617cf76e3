"""Jobs by kubectl: apply, get, describe, explain, wait, edit, delete."""

from pathlib import Path

import pytest
import yaml

from dljob.control.situation.status import Condition, ConditionType, DecisionNumber, Status
from dljob.control.situation.status_documents import write_status
from dljob.core.model import Framework, Phase
from dljob.core.predicting.predictor import Span
from dljob.operator.jobs.columns import with_columns
from tests.builders import make_placement
from tests.operator.manifests import EXAMPLES, LEAST, make_manifest, path_of, set_phase
from tests.operator.stages import wait_until
from tests.servers.api import Json
from tests.servers.controlplane import ControlPlane
from tests.servers.kubectl import Kubectl, KubectlFailed

pytestmark = pytest.mark.cluster

LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
ETA = Span(5120.0, 5000.0, 5300.0)


@pytest.fixture
def file(tmp_path: Path):
    def write(manifest: Json, name: str = "job") -> Path:
        path = tmp_path / f"{name}.yaml"
        path.write_text(yaml.safe_dump(manifest))
        return path

    return write


def play_status(cluster: ControlPlane, namespace: str, status: Status) -> None:
    """Play the operator: write the status of the job ``job``."""
    document = with_columns(write_status(status, remaining=ETA))
    with cluster.api() as api:
        api.merge(path_of(namespace, "job", "status"), {"status": document})


RUNNING = Status(
    phase=Phase.RUNNING,
    placement=make_placement("V100", n1=(0, 1, 2, 3), n2=(5,)),
    generation=DecisionNumber(3),
    iteration=310,
    iterations_total=1000.0,
    speed=5.14,
    reshapes=4,
    message="grows from 2 to 5 GPUs: they are idle",
    conditions=(
        Condition(
            ConditionType.SCHEDULED, status=True, reason="IdleGpus", message="why not", since=1e9
        ),
    ),
)


def cells_of(table: str, name: str) -> dict[str, str]:
    header, *rows = table.splitlines()
    titles = header.split()
    starts = [header.index(title) for title in titles]
    [row] = [row for row in rows if row.split()[0] == name]
    ends = [*starts[1:], len(row)]
    return {
        title: row[start:end].strip()
        for title, start, end in zip(titles, starts, ends, strict=True)
    }


def test_job_is_applied_changed_and_applied_again(kubectl: Kubectl, file):
    applied = file(make_manifest("job"))
    assert kubectl("apply", "-f", applied).strip() == "dljob.dljob.io/job created"
    assert kubectl("apply", "-f", applied).strip() == "dljob.dljob.io/job unchanged"
    changed = file(make_manifest("job", priority=7, backoffLimit=1), "changed")
    assert kubectl("diff", "-f", applied) == ""
    assert kubectl.try_to("diff", "-f", changed).code == 1
    assert kubectl("apply", "-f", changed).strip() == "dljob.dljob.io/job configured"
    # A removed field returns to its default.
    kubectl("apply", "-f", file(make_manifest("job", priority=7)))
    job = yaml.safe_load(kubectl("get", "dljob", "job", "-o", "yaml"))
    assert (job["spec"]["priority"], job["spec"]["backoffLimit"]) == (7, 3)


def test_large_template_fits_into_the_annotation_of_apply(kubectl: Kubectl, file):
    """Client-side apply keeps the whole manifest in an annotation, with at most 256 KiB."""
    env = [{"name": f"VARIABLE_{n}", "value": "v" * 400} for n in range(400)]
    trainer = {**LEAST["template"]["spec"]["containers"][0], "env": env}
    large = make_manifest("job", template={"spec": {"containers": [trainer]}})
    kubectl("apply", "-f", file(large))
    job = yaml.safe_load(kubectl("get", "dljob", "job", "-o", "yaml"))
    assert 170_000 < len(job["metadata"]["annotations"][LAST_APPLIED]) < 262_144
    assert kubectl("apply", "-f", file(large)).strip() == "dljob.dljob.io/job unchanged"


def test_defaults_are_filled_in(kubectl: Kubectl, file):
    kubectl("create", "-f", file(make_manifest("job")))
    spec = yaml.safe_load(kubectl("get", "dljob", "job", "-o", "yaml"))["spec"]
    assert spec["framework"] == "none"
    # Fields that depend on others stay open.
    assert "processes" not in spec
    assert spec["gpus"] == {"options": [1, 2], "mixed": False, "ids": "index"}
    assert spec["progress"] == {"http": True, "stallSeconds": 600}
    assert spec["checkpoint"] == {
        "complete": "auto",
        "confirm": "exit",
        "graceSeconds": 10,
        "shared": False,
        "timeoutSeconds": 60,
        "to": "leader",
        "trusted": False,
        "vet": False,
    }
    assert (spec["priority"], spec["suspend"], spec["backoffLimit"]) == (0, False, 3)


@pytest.mark.story
def test_columns_are_shown_by_every_name(
    cluster: ControlPlane, kubectl: Kubectl, namespace: str, file
):
    kubectl("apply", "-f", file(make_manifest("job", priority=7)))
    for word in ("dljobs", "dljob", "dljobs.dljob.io", "all"):
        assert "job" in kubectl("get", word)
    cells = cells_of(kubectl("get", "dlj"), "job")
    assert (cells["PHASE"], cells["GPUS"], cells["PROGRESS"]) == ("", "", "")
    play_status(cluster, namespace, RUNNING)
    cells = cells_of(kubectl("get", "dlj"), "job")
    assert cells.pop("AGE")
    assert cells == {
        "NAME": "job",
        "PHASE": "Running",
        "GPUS": "5",
        "PROGRESS": "31%",
        "SPEED": "5.14 it/s",
        "ETA": "85m",
        "RESHAPES": "4",
    }
    wide = cells_of(kubectl("get", "dlj", "-o", "wide"), "job")
    assert wide["PRIORITY"] == "7"
    assert wide["OPTIONS"] == "[1,2]"
    assert wide["FAILURES"] == "0"
    assert wide["ALLOCATION"] == "n1[0-3] n2[5]"
    assert wide["REASON"] == "grows from 2 to 5 GPUs: they are idle"
    told = kubectl("describe", "dljob", "job")
    for words in ("Reason:", "IdleGpus", "Scheduled", "Gpu Ids:", "Phase:", "Running"):
        assert words in told


def explain(kubectl: Kubectl, field: str) -> str:
    """Explain a field; the API server publishes a definition a moment after it serves jobs."""
    wait_until(lambda: kubectl.try_to("explain", field).code == 0)
    return kubectl("explain", field)


EXPLAINED = {
    "dljob": "A training job that can run on several numbers of GPUs.",
    "dljob.spec.gpus": "The numbers of GPUs that the job can run on, one by one.",
    "dljob.spec.template.spec.containers.command": "The trainer must have one",
    "dlj.spec.training.target.patience": "How many reports in a row must reach it",
    "dljob.status": "The phase of the job.",
}


def test_every_field_is_explained_with_its_choices(kubectl: Kubectl):
    for field, teaches in EXPLAINED.items():
        assert teaches in " ".join(explain(kubectl, field).split())
    told = explain(kubectl, "dljob.spec.framework").split()
    assert told[told.index("ENUM:") + 1 :][:5] == [framework.value for framework in Framework]


def test_running_job_can_be_suspended_and_not_changed(
    cluster: ControlPlane, kubectl: Kubectl, namespace: str, file
):
    kubectl("apply", "-f", file(make_manifest("job")))
    with cluster.api() as api:
        set_phase(api, namespace, "job", "Running")
    patched = kubectl("patch", "dljob", "job", "--type=merge", '--patch={"spec":{"suspend":true}}')
    assert patched.strip() == "dljob.dljob.io/job patched"
    with pytest.raises(KubectlFailed) as failed:
        kubectl("apply", "-f", file(make_manifest("job", training={"iterations": 5})))
    assert "training cannot change while the job runs, because what is left of it" in str(
        failed.value
    )
    assert "cancel the job and submit it again" in str(failed.value)


def test_misspelt_field_is_refused(kubectl: Kubectl, file):
    with pytest.raises(KubectlFailed, match=r'unknown field "spec\.prioritty"'):
        kubectl("apply", "-f", file(make_manifest("job", prioritty=7)))


def test_one_command_applies_all_examples(kubectl: Kubectl):
    applied = kubectl("apply", "-f", EXAMPLES[0].parent).splitlines()
    jobs = [line for line in applied if line.startswith("dljob.dljob.io/")]
    assert len(jobs) == len(EXAMPLES)
    assert all(line.endswith(" created") for line in applied)
