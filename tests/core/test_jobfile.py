"""The meaning of a DLJob document; all faults of one are reported at once."""

from copy import deepcopy
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
import yaml

from dlcore.documents import jobfile
from dlcore.model import (
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
from dlcore.profiles import JobType

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


def test_every_field_of_a_document_arrives_in_the_job():
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
            confirm="log",
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
        roles=(Role(name="ps", replicas=2, template=given["spec"]["auxiliaries"][0]["template"]),),
        labels={"team": "vision", "app.kubernetes.io/part-of": "zoo"},
        template=given["spec"]["template"],
    )


def test_what_is_left_out_is_as_the_model_has_it():
    assert jobfile.parse(read("least")) == Job(
        id=JobId("least"),
        gpus=GpuDemand(options=(1,), requested=1, max_nodes=1),
        training=Training(iterations=100),
    )


@pytest.mark.parametrize(
    ("gpus", "options"),
    [
        ({"options": [4, 1, 2]}, (1, 2, 4)),
        ({"min": 2, "max": 5}, (2, 3, 4, 5)),
        ({"max": 3}, (1, 2, 3)),
        ({"min": 4, "max": 4}, (4,)),
    ],
)
def test_options_rise_and_a_range_holds_every_number_between(
    gpus: dict[str, Any], options: tuple[int, ...]
):
    demand = jobfile.parse(document(gpus=gpus)).gpus
    assert demand.options == options
    assert demand.requested == options[-1]


def test_a_job_whose_processes_cannot_find_each_other_stays_on_one_node_unless_told():
    def limit(**spec: Any) -> int | None:
        return jobfile.parse(document(**spec)).gpus.max_nodes

    assert limit() == 1
    assert limit(framework="none") == 1
    assert limit(framework="pytorch") is None
    assert limit(gpus={"max": 16, "maxNodes": 2}) == 2
    assert limit(gpus={"max": 16, "maxNodes": 2}, framework="jax") == 2


def test_only_a_job_with_a_profile_shares_one():
    training = {"iterations": 1, "batchSize": 64}
    assert jobfile.parse(document(training=training)).type == JobType("")
    typed = document(training=training, profile={"model": "bert"})
    assert jobfile.parse(typed).type == JobType("bert", "", 64)


def test_a_target_alone_leaves_the_number_of_iterations_open():
    target = {"metric": "loss", "value": 1, "direction": "falls"}
    training = jobfile.parse(document(training={"target": target})).training
    assert training.iterations is None
    assert training.target == Target(metric="loss", value=1.0, direction=Direction.FALLS)


def test_a_field_that_is_there_but_empty_was_left_out():
    assert jobfile.parse(document(profile=None, checkpoint=None)) == jobfile.parse(read("least"))


def test_a_status_is_not_the_users_and_never_a_fault_of_theirs():
    assert jobfile.parse({**read("least"), "status": "?"}) == jobfile.parse(read("least"))


def test_what_kubernetes_adds_to_the_metadata_is_no_fault_either():
    given = read("least")
    given["metadata"] |= {
        "uid": "f00",
        "resourceVersion": "12",
        "generation": 3,
        "managedFields": [{"manager": "kubectl"}],
        "annotations": {"kubectl.kubernetes.io/last-applied-configuration": "{}\n"},
    }
    assert jobfile.parse(given) == jobfile.parse(read("least"))


def test_any_mapping_is_a_document_and_none_is_changed_or_shared():
    given = read("everything")
    before = deepcopy(given)
    job = jobfile.parse(MappingProxyType(given))
    assert given == before
    given["spec"]["template"]["spec"]["containers"][0]["image"] = "another"
    assert job.template == before["spec"]["template"]
    rendered = jobfile.render(job)
    rendered["spec"]["template"]["spec"]["containers"].clear()
    assert job.template == before["spec"]["template"]


def test_only_what_runs_for_real_needs_a_template():
    assert jobfile.parse(read("least")).template == {}
    (line,) = lines_of(read("least"), require_template=True)
    assert line == "spec.template: it is missing; give a pod template"


def test_the_source_begins_every_line():
    lines = lines_of({"kind": "DLJob"}, source="jobs/a.yaml")
    assert len(lines) == 3
    assert all(line.startswith("jobs/a.yaml: ") for line in lines)


def test_a_problem_can_be_read_by_a_program_too():
    with pytest.raises(jobfile.JobFileError) as caught:
        jobfile.parse(document(gpus={"options": [1, 0]}), source="a.yaml")
    (problem,) = caught.value.problems
    assert (problem.path, problem.value) == ("spec.gpus.options[1]", 0)
    assert str(problem) == problem.line()
    assert problem.line("a.yaml") == (
        "a.yaml: spec.gpus.options[1]: 0 is not a positive number; give counts of at least 1"
    )


def test_whatever_a_document_holds_its_problems_stay_one_line_each():
    nasty = "a\nb\x00\u2028\u0085\x1b[31m" * 50
    wrong = document(framework=nasty, **{nasty: nasty}, progress={"log": f"({nasty}"})
    lines = lines_of(wrong)
    assert len(lines) == 3
    for line in lines:
        assert line.isprintable()
        assert len(line.splitlines()) == 1


def test_a_field_that_is_wrong_in_itself_is_not_judged_by_a_rule_as_well():
    def refused(amount: object) -> tuple[str, ...]:
        resources = {"limits": {"nvidia.com/gpu": amount}}
        container = {"name": "trainer", "command": ["train"], "resources": resources}
        template = {"spec": {"containers": [container]}}
        return lines_of(document(template=template, progress={"http": True}))

    where = "spec.template.spec.containers[0].resources"
    assert refused([1]) == (
        f'{where}.limits["nvidia.com/gpu"]: it is a list, not an amount; give a number, or a string such as "4Gi"',
    )
    (line,) = refused(1)
    assert line.startswith(f"{where}: it asks Kubernetes for GPUs")


def test_lists_and_maps_of_any_length_are_refused_before_they_are_walked_through():
    words = {f"label-{index}": "" for index in range(257)}
    labelled = read("least")
    labelled["metadata"]["labels"] = words
    assert lines_of(labelled) == ("metadata.labels: it has 257 entries; give at most 256",)
    long = document(checkpoint={"command": ["x" * 4097]})
    assert lines_of(long) == (
        "spec.checkpoint.command[0]: the string has 4097 characters, more than 4096; shorten it",
    )


def test_keys_that_are_no_strings_are_named():
    labelled = read("least")
    labelled["metadata"]["labels"] = {7: "a"}
    assert lines_of(labelled) == (
        "metadata.labels[7]: 7 is a number, not a string; write it in quotes",
    )


# --- changes --------------------------------------------------------------------------------


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


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("spec.gpus", {"min": 2, "max": 16, "types": ["A100"]}),
        ("spec.priority", -3),
        ("spec.suspend", False),
        ("spec.ttlSecondsAfterFinished", None),
        ("spec.activeDeadlineSeconds", 5),
        ("spec.backoffLimit", 9),
        ("metadata.labels", {"team": "speech"}),
        ("metadata.annotations", None),
    ],
)
def test_numbers_of_gpus_priority_and_limits_may_change_while_a_job_runs(path: str, value: Any):
    assert jobfile.change_problems(jobfile.parse(read("everything")), changed(path, value)) == []


@pytest.mark.parametrize(
    ("path", "value", "told"),
    [
        ("spec.framework", "jax", "spec.framework"),
        ("spec.processes", "perGpu", "spec.processes"),
        ("spec.training.epochs", 91, "spec.training.epochs"),
        ("spec.training.target.value", 0.95, "spec.training.target.value"),
        ("spec.profile", None, "spec.profile"),
        ("spec.profile.dataset", None, "spec.profile.dataset"),
        ("spec.progress.stallSeconds", 1, "spec.progress.stallSeconds"),
        ("spec.checkpoint.signal", "SIGHUP", "spec.checkpoint.signal"),
        ("spec.checkpoint", None, "spec.checkpoint"),
        ("spec.warmStart.preload", ["jax"], "spec.warmStart.preload"),
        ("spec.warmStart.preload", ["torch", "jax"], "spec.warmStart.preload[1]"),
        ("spec.batch.max", 512, "spec.batch.max"),
        ("spec.auxiliaries.0.replicas", 3, "spec.auxiliaries[0].replicas"),
        (
            "spec.template.spec.containers.0.image",
            "pytorch:3",
            "spec.template.spec.containers[0].image",
        ),
    ],
)
def test_what_the_running_processes_were_made_from_may_not_change(path: str, value: Any, told: str):
    (problem,) = jobfile.change_problems(jobfile.parse(read("everything")), changed(path, value))
    assert problem.path == told
    assert "cannot change while the job runs, because " in problem.message
    assert problem.remedy == "change it back, or cancel the job and submit it again"


def test_a_job_cannot_become_another():
    old = jobfile.parse(read("everything"))
    (problem,) = jobfile.change_problems(old, changed("metadata.name", "bert"))
    assert problem.line() == (
        'metadata.name: "research/resnet18-imagenet" cannot become "research/bert",'
        " which is another job; submit that one too, and cancel this"
    )
