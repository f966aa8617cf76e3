"""``dljob render``: what a job's pods would be, for people to read before they apply it."""

import yaml

from tests.operator.kubelets import ROOT

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


def test_wrong_field_is_refused_with_its_place(dljob, tmp_path):
    file = tmp_path / "job.yaml"
    file.write_text("apiVersion: dljob.io/v1alpha1\nkind: DLJob\nmetadata: {name: A}\nspec: {}\n")
    result = dljob("render", file)
    assert (result.status, result.stdout) == (1, "")
    assert f"{file}:3: metadata.name" in result.stderr


def test_a_setting_that_there_is_not_is_refused_by_name(dljob):
    for option, told in (
        ("pods.imag=x", "did you mean pods.image?"),
        ("pods.image", "write PATH=VALUE"),
    ):
        result = dljob("render", EXAMPLES[0], f"--set={option}")
        assert result.status != 0
        assert told in result.stderr
