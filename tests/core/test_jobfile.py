"""The meaning of a DLJob document; all of its faults are reported at once."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from dljob.core.documents import jobfile
from dljob.core.model import (
    BatchRange,
    Checkpoint,
    Direction,
    Framework,
    GpuDemand,
    Job,
    JobId,
    Limits,
    Progress,
    Role,
    Target,
    Training,
)
from dljob.core.profiles import JobType
from dljob_wire.checkpoints import Confirmation

GOOD = Path(__file__).parent / "data" / "good_jobs"


def read(name: str) -> Any:
    return yaml.safe_load((GOOD / f"{name}.yaml").read_text())


def document(**spec: Any) -> dict[str, Any]:
    """A small job, with the given fields of its spec changed or added."""
    least: dict[str, Any] = read("least")
    least["spec"].update(spec)
    return least


def lines_of(wrong: object, **options: Any) -> tuple[str, ...]:
    with pytest.raises(jobfile.JobFileError) as caught:
        jobfile.parse(wrong, **options)
    assert str(caught.value) == "\n".join(caught.value.lines())
    return caught.value.lines()


def test_every_field_is_parsed():
    given = read("everything")
    job = jobfile.parse(given, require_template=True)
    assert job == Job(
        id=JobId("research/resnet18-imagenet"),
        gpus=GpuDemand(
            options=(1, 2, 4, 8),
            requested=4,
            types=("V100", "P100"),
            mixed=True,
            max_nodes=2,
            ids="uuid",
        ),
        training=Training(
            iterations=90 * 5004,
            epochs=90,
            iterations_per_epoch=5004,
            batch_size=256,
            target=Target(metric="top5", value=0.9, patience=3, direction=Direction.FALLS),
        ),
        type=JobType("resnet18", "imagenet", 256),
        submitted_at=90.5,
        priority=7,
        suspend=True,
        framework=Framework.PYTORCH,
        processes="perNode",
        progress=Progress(
            log=r"step (?P<iteration>\d+) .*top5=(?P<top5>[\d.]+)",
            samples_per_iteration=256,
            stall_seconds=300.0,
            restart_seconds=900.0,
        ),
        checkpoint=Checkpoint(
            signal="SIGUSR1",
            to="all",
            confirm=Confirmation.LOG,
            confirm_log="checkpoint written",
            path="/ckpt",
            shared=True,
            timeout_seconds=120.0,
            grace_seconds=2.5,
        ),
        batch=BatchRange(elastic=True, maximum=4096),
        limits=Limits(ttl_seconds_after_finished=0, active_deadline_seconds=86400, backoff_limit=0),
        python="/opt/envs/train/bin/python",
        variables=("HF_TOKEN",),
        preload=("torch", "torch.distributed"),
        live_seconds=12.5,
        roles=(Role(name="ps", replicas=2, template=given["spec"]["auxiliaries"][0]["template"]),),
        labels={"team": "vision", "app.kubernetes.io/part-of": "zoo"},
        template=given["spec"]["template"],
    )


def test_omitted_fields_have_defaults():
    assert jobfile.parse(read("least")) == Job(
        id=JobId("least"),
        gpus=GpuDemand(options=(1,), requested=1, max_nodes=1),
        training=Training(iterations=100),
    )


def test_options_are_sorted_and_ranges_expanded():
    for gpus, options in (
        ({"options": [4, 1, 2]}, (1, 2, 4)),
        ({"min": 2, "max": 5}, (2, 3, 4, 5)),
        ({"max": 3}, (1, 2, 3)),
    ):
        demand = jobfile.parse(document(gpus=gpus)).gpus
        assert demand.options == options
        assert demand.requested == options[-1]


def test_job_without_rendezvous_stays_on_one_node():
    def limit(**spec: Any) -> int | None:
        return jobfile.parse(document(**spec)).gpus.max_nodes

    assert limit() == 1
    assert limit(framework="none") == 1
    assert limit(framework="pytorch") is None
    assert limit(gpus={"max": 16, "maxNodes": 2}) == 2
    assert limit(gpus={"max": 16, "maxNodes": 2}, framework="jax") == 2


def test_job_type_needs_a_profile():
    training = {"iterations": 1, "batchSize": 64}
    assert jobfile.parse(document(training=training)).type == JobType("")
    typed = document(training=training, profile={"model": "bert"})
    assert jobfile.parse(typed).type == JobType("bert", "", 64)


def test_metadata_added_by_kubernetes_is_accepted():
    given = read("least")
    given["metadata"] |= {
        "uid": "f00",
        "resourceVersion": "12",
        "generation": 3,
        "managedFields": [{"manager": "kubectl"}],
        "annotations": {"kubectl.kubernetes.io/last-applied-configuration": "{}\n"},
    }
    assert jobfile.parse(given) == jobfile.parse(read("least"))


def test_template_is_required_only_for_real_runs():
    assert jobfile.parse(read("least")).template == {}
    (line,) = lines_of(read("least"), require_template=True)
    assert line == "spec.template: it is missing; give a pod template"


def test_problem_has_path_and_value():
    with pytest.raises(jobfile.JobFileError) as caught:
        jobfile.parse(document(gpus={"options": [1, 0]}), source="a.yaml")
    (problem,) = caught.value.problems
    assert (problem.path, problem.value) == ("spec.gpus.options[1]", 0)
    assert str(problem) == problem.line()
    assert problem.line("a.yaml") == (
        "a.yaml: spec.gpus.options[1]: 0 is not a positive number; give counts of at least 1"
    )


def test_problems_are_one_printable_line_each():
    nasty = "a\nb\x00\u2028\u0085\x1b[31m" * 50
    wrong = document(framework=nasty, **{nasty: nasty}, progress={"log": f"({nasty}"})
    lines = lines_of(wrong)
    assert len(lines) == 3
    for line in lines:
        assert line.isprintable()
        assert len(line.splitlines()) == 1


def test_oversized_collections_are_refused():
    words = {f"label-{index}": "" for index in range(257)}
    labelled = read("least")
    labelled["metadata"]["labels"] = words
    assert lines_of(labelled) == ("metadata.labels: it has 257 entries; give at most 256",)
    long = document(checkpoint={"command": ["x" * 4097]})
    assert lines_of(long) == (
        "spec.checkpoint.command[0]: the string has 4097 characters, more than 4096; shorten it",
    )


def changed(path: str, value: Any) -> Job:
    given = read("everything")
    *parents, last = path.split(".")
    inner = given
    for name in parents:
        inner = inner[int(name)] if name.isdigit() else inner[name]
    if value is None:
        del inner[last]
    else:
        inner[last] = value
    return jobfile.parse(given)


def test_gpus_priority_and_limits_may_change():
    old = jobfile.parse(read("everything"))
    for path, value in (
        ("spec.gpus", {"min": 2, "max": 16, "types": ["A100"]}),
        ("spec.priority", -3),
        ("spec.suspend", False),
        ("spec.activeDeadlineSeconds", 5),
        ("metadata.labels", {"team": "speech"}),
        ("metadata.annotations", None),
    ):
        assert jobfile.change_problems(old, changed(path, value)) == [], path


def test_fixed_fields_may_not_change():
    old = jobfile.parse(read("everything"))
    for path, value, field in (
        ("spec.framework", "jax", "spec.framework"),
        ("spec.training.target.value", 0.95, "spec.training.target.value"),
        ("spec.profile", None, "spec.profile"),
        ("spec.profile.dataset", None, "spec.profile.dataset"),
        ("spec.warmStart.preload", ["torch", "jax"], "spec.warmStart.preload[1]"),
        ("spec.auxiliaries.0.replicas", 3, "spec.auxiliaries[0].replicas"),
    ):
        (problem,) = jobfile.change_problems(old, changed(path, value))
        assert problem.path == field
        assert "cannot change while the job runs, because " in problem.message
        assert problem.remedy == "change it back, or cancel the job and submit it again"


def test_name_may_not_change():
    old = jobfile.parse(read("everything"))
    (problem,) = jobfile.change_problems(old, changed("metadata.name", "bert"))
    assert problem.line() == (
        'metadata.name: "research/resnet18-imagenet" cannot become "research/bert",'
        " which is another job; submit that one too, and cancel this"
    )
