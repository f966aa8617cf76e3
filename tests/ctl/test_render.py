"""``dljob render``: what a job's pods would be, for people to read before they apply it."""

import copy
import re

import yaml

from tests.operator.kubelets import ROOT
from tests.operator.manifests import make_manifest

EXAMPLES = sorted((ROOT / "manifests" / "examples").glob("*.yaml"))


def test_every_example_makes_pods(dljob):
    for file in EXAMPLES:
        result = dljob("render", file, "--node=gpu-7", "--set=pods.image=sidecar:9")
        assert result.status == 0, result.stderr
        jobs = [each for each in yaml.safe_load_all(file.read_text()) if each["kind"] == "DLJob"]
        pods = list(yaml.safe_load_all(result.stdout))
        wanted = sum(
            1 + sum(role.get("replicas", 1) for role in job["spec"].get("auxiliaries", ()))
            for job in jobs
        )
        assert len(pods) == wanted
        assert pods[0]["spec"]["initContainers"][0]["image"] == "sidecar:9"
        assert "gpu-7" in str(pods[0]["spec"]["affinity"])


def test_what_is_wrong_is_told_with_its_place(dljob, tmp_path):
    file = tmp_path / "job.yaml"
    file.write_text("apiVersion: dljob.io/v1alpha1\nkind: DLJob\nmetadata: {name: A}\nspec: {}\n")
    result = dljob("render", file)
    assert (result.status, result.stdout) == (1, "")
    assert f"{file}:3: metadata.name" in result.stderr


TERMS = "affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms"


def with_terms(terms):
    return {"affinity": {"nodeAffinity": {TERMS.split(".")[2]: {"nodeSelectorTerms": terms}}}}


def test_of_a_template_that_is_no_pod_each_wrong_field_is_named(dljob, tmp_path):
    file = tmp_path / "job.yaml"
    for template, told in (
        ({"affinity": {"nodeAffinity": ["a"]}}, ["affinity.nodeAffinity: it is a list, not a map"]),
        (
            {"tolerations": {"key": "spot"}, "volumes": "data"},
            ["tolerations: it is a mapping, not a list", 'volumes: "data" is a string, not a list'],
        ),
        (
            {"terminationGracePeriodSeconds": "30"},
            ['terminationGracePeriodSeconds: "30" is a string, not a whole number'],
        ),
        (
            with_terms([None, {"matchFields": 5}]),
            [f"{TERMS}[1].matchFields: 5 is a number, not a list"],
        ),
    ):
        job = copy.deepcopy(make_manifest("job"))
        job["spec"]["template"]["spec"] |= template
        file.write_text(yaml.safe_dump(job))
        result = dljob("render", file)
        assert (result.status, result.stdout) == (1, "")
        lines = result.stderr.splitlines()
        for line, each in zip(lines, told, strict=True):
            assert re.match(rf"dljob: {file}:\d+: spec\.template\.spec\.{re.escape(each)}", line)
            assert "; write " in line


def test_a_setting_that_there_is_not_is_refused_by_name(dljob):
    for option, told in (
        ("pods.imag=x", "did you mean pods.image?"),
        ("pods.image", "write PATH=VALUE"),
    ):
        result = dljob("render", EXAMPLES[0], f"--set={option}")
        assert result.status != 0
        assert told in result.stderr
