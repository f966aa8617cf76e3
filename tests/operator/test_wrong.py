"""
The API server and the parser refuse wrong jobs with messages that users understand.

The jobs are those of the core's tests. One table has the API server's answer to each, so that a job
that only one of the two refuses is visible. To add one: a file there, a line in the table.
"""

from http import HTTPStatus
from pathlib import Path

import pytest
import yaml

from dljob.core.documents import jobfile, jobschema
from dljob_wire.kinds import Text
from tests.core.test_jobfile_schema import RULES, iter_nodes
from tests.operator.manifests import (
    EXAMPLES,
    GOOD_JOBS,
    WRONG_JOBS,
    completed,
    make_manifest,
    path_of,
    read_completed,
    read_jobs,
)
from tests.operator.refusing import refusal
from tests.servers.api import Api, Json, Refused
from tests.servers.controlplane import ControlPlane

REFUSALS: dict[str, list[str]] = yaml.safe_load(
    (Path(__file__).parent / "wrong" / "refusals.yaml").read_text(encoding="utf-8")
)
ONLY_OURS = {
    "a-number-as-a-label-name": "JSON knows no numbers as names; kubectl makes a string of it",
    "asks-kubernetes-for-a-slice": "of a template rules see the fields that are named, and there are many kinds",
    "confirming-expression-cannot-compile": "no rule can try a regular expression of Python",
    "expression-that-cannot-compile": "no rule can try a regular expression of Python",
    "expression-that-repeats-too-often": "no rule can try a regular expression of Python",
    "generated-name": "Kubernetes gives it a name",
    "gpus-with-a-point": "to Kubernetes 2.0 is the whole number 2",
    "launcher-for-each-gpu": "no rule reads the words of a command",
    "misspelt-annotation": "of the metadata rules see the name only",
    "submit-at-is-a-clock": "of the metadata rules see the name only",
    "submitted-before-time": "of the metadata rules see the name only",
}
NEVER_SENT = {
    "a-date-in-the-template": "kubectl makes a string of it",
    "a-list": "kubectl refuses it",
    "contains-itself": "kubectl refuses it",
    "empty": "kubectl refuses it",
    "endless-iterations": "JSON knows no infinity",
    "grows-without-end": "kubectl refuses it",
    "infinitely-many-gpus": "JSON knows no infinity",
    "infinity-in-the-template": "JSON knows no infinity",
    "no-number-of-gpus": "JSON knows no such number",
    "only-text": "kubectl refuses it",
    "target-is-no-number": "JSON knows no such number",
}
WRONG = {path.stem: path for path in WRONG_JOBS}


def test_each_wrong_job_has_its_refusal():
    assert {*REFUSALS, *ONLY_OURS, *NEVER_SENT} == set(WRONG)
    assert len(REFUSALS) + len(ONLY_OURS) + len(NEVER_SENT) == len(WRONG)
    assert len(REFUSALS) >= 140


@pytest.mark.cluster
@pytest.mark.story
def test_api_server_refuses_wrong_jobs_and_accepts_good_ones(api: Api):
    for name, words in REFUSALS.items():
        assert refusal(api, "default", read_completed(WRONG[name])) == words, name
    for name in ONLY_OURS:
        assert refusal(api, "default", read_completed(WRONG[name])) == [], name
    for path in (*GOOD_JOBS, *EXAMPLES):
        jobs: list[Json] = [completed(job) for job in read_jobs(path)]
        assert jobs, path
        for job in jobs:
            assert refusal(api, "default", job) == [], path
            jobfile.parse(job, require_template=True)


def test_parser_refuses_them_at_the_same_place():
    for name, words in REFUSALS.items():
        with pytest.raises(jobfile.JobFileError) as caught:
            jobfile.parse(read_completed(WRONG[name]), require_template=True)
        ours = {problem.path for problem in caught.value.problems}
        told = " ".join(words)
        # It blames the entry for a duplicate name, and all labels for one of them.
        around = {path.removesuffix(".name").removesuffix(".key") for path in ours}
        around |= {path.partition(".labels")[0] + ".labels" for path in ours if ".labels" in path}
        is_no_job = not told.startswith(("spec", "metadata", "<nil>", "kind"))
        assert is_no_job or any(path in told for path in ours | around), name


def test_parser_refuses_jobs_that_the_api_server_cannot_check():
    for name in ONLY_OURS:
        with pytest.raises(jobfile.JobFileError):
            jobfile.parse(read_completed(WRONG[name]), require_template=True)


TOLD = [line for lines in REFUSALS.values() for line in lines]
FORMS = {
    node.form for node in iter_nodes(jobschema.RUNNABLE) if isinstance(node, Text) and node.form
}


def test_each_rule_is_broken_by_a_wrong_job():
    complaints = {f"{rule.message}; {rule.remedy}" for rule in RULES}
    complaints |= {f"{form.complaint}; {form.mend('')}" for form in FORMS}
    untried = [each for each in complaints if not any(line.endswith(f" {each}") for line in TOLD)]
    assert untried == []


@pytest.mark.cluster
def test_wrong_job_is_not_stored(cluster: ControlPlane, namespace: str, tmp_path: Path):
    wrong = make_manifest("wrong", gpus={"options": [1, 2], "requested": 3})
    file = tmp_path / "job.yaml"
    file.write_text(yaml.safe_dump(wrong))
    said = cluster.kubectl.in_namespace(namespace).try_to("apply", "-f", file)
    assert said.code == 1
    assert "spec.gpus.requested" in said.err
    assert "requested is none of the numbers of GPUs that the job can run on" in said.err
    assert "give one of them, or leave requested out for the largest" in said.err
    with cluster.api() as api, pytest.raises(Refused) as refused:
        api.get(path_of(namespace, "wrong"))
    assert refused.value.code == HTTPStatus.NOT_FOUND
