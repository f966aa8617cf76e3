"""DLJob files are played in a simulation as they are."""

import io
from pathlib import Path

import pytest

from dljob.core.profiles import JobType
from dljob.sim.errors import BadInput
from dljob.sim.inputs import yamlfiles
from dljob.sim.jobs.workloads import Workload
from dljob_wire.messages import Shape
from tests.sim.worlds import read_workload

JOB = """
apiVersion: dljob.io/v1alpha1
kind: DLJob
metadata:
  name: NAME
  annotations: {dljob.io/submit-at: "AT"}
spec:
  gpus: {options: [1, 2, 4]}
  training: {iterations: 1000, batchSize: 256}
  profile: {model: resnet50}
"""


def job(name: str = "one", at: float = 0, *changes: tuple[str, str]) -> str:
    text = JOB.replace("NAME", name).replace("AT", str(at))
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    return text


def read_text(folder: Path, text: str, **changes) -> Workload:
    path = folder / "jobs.yaml"
    path.write_text(text, encoding="utf-8")
    return read_workload(path, **changes)


def test_file_may_hold_several_jobs(tmp_path):
    workload = read_text(tmp_path, "---".join([job("late", 60), job("a"), job("b"), "\n"]))
    assert [t.job.id for t in workload.jobs] == ["a", "b", "late"]
    assert [t.job.submitted_at for t in workload.jobs] == [0.0, 0.0, 60.0]
    assert workload.name == "jobs"


def test_speed_comes_from_the_profile(tmp_path):
    workload = read_text(tmp_path, job(), gpu_types=("A100",))
    speeds = workload.truths[JobType("resnet50", "", 256)].speeds
    assert speeds[Shape(4, 1, "A100")].iterations_per_s == 6.19081


TARGET = ("iterations: 1000, batchSize: 256", "batchSize: 256, target: {metric: top5, value: 0.9}")
PROGRESS = (
    "  profile:",
    "  progress: {log: 'step (?P<iteration>[0-9]+) top5=(?P<top5>[.0-9]+)'}\n  profile:",
)
CURVE = ('submit-at: "0"', 'submit-at: "0", sim.dljob.io/learning: "b0=0.002 b1=1.5 c=0.93"')


def test_job_ends_where_its_curve_reaches_the_target(tmp_path):
    (traced,) = read_text(tmp_path, job("one", 0, TARGET, PROGRESS, CURVE)).jobs
    assert traced.learning is not None
    assert traced.learning.truth_at(traced.iterations) == pytest.approx(0.9)


@pytest.mark.parametrize("curve", ["", "b0=0 b1=1 c=1", "b0=1 b1=1 c=nan", "b0=1 b1=1 c=1 d=1"])
def test_invalid_learning_curve_is_refused(tmp_path, curve):
    wrong = ("b0=0.002 b1=1.5 c=0.93", curve)
    expect_error(tmp_path, job("one", 0, TARGET, PROGRESS, CURVE, wrong), "is no learning curve")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (job("one", 0, TARGET, PROGRESS), "nothing says when the training ends"),
        (
            job("one", 0, TARGET, PROGRESS, CURVE, ("c=0.93", "c=0.8")),
            "nothing says when the training ends",
        ),
        (job() + "---" + job(), "'one' is the job of .*:2 already"),
        (job("one", -5), "submit-at"),
        (job("one", 0, ("[1, 2, 4]", "[0, 2]")), "options"),
        (job("one", 0, ("iterations: 1000", "iterations: 0")), "iterations"),
        (job("one", 0, ("kind: DLJob", "kind: Pod")), "kind"),
        ("[1, 2]", "the document is a list"),
        ("a: [1, 2", "is not YAML"),
        ("a: !!python/object:os.system {}", "is not YAML"),
        ("\tspec: {}", "is not YAML"),
        ("&a [*a]", "anchor"),
        ("", "holds no DLJob"),
        ("[" * 1200, "is not YAML"),
    ],
)
def test_invalid_document_has_a_one_line_error(tmp_path, text, words):
    expect_error(tmp_path, text, words)


def test_unreadable_files_are_refused(tmp_path):
    with pytest.raises(BadInput, match="a folder without YAML files"):
        read_workload(tmp_path)
    with pytest.raises(BadInput, match="cannot be read"):
        read_workload(tmp_path / "nothing.yaml")
    (tmp_path / "latin.yaml").write_bytes("name: jürgen".encode("latin-1"))
    with pytest.raises(BadInput, match="UTF-8"):
        read_workload(tmp_path)


def expect_error(folder: Path, text: str, words: str) -> BadInput:
    with pytest.raises(BadInput, match=words) as caught:
        read_text(folder, text)
    message = str(caught.value)
    assert len(message.splitlines()) == 1
    assert message.startswith(str(folder))
    assert caught.value.remedy
    return caught.value


def merging(count: int) -> str:
    """Mappings that each merge the former one twice: a gigabyte of fields in 700 characters."""
    lines = [f"a{n}: &a{n} {{<<: [*a{n - 1}, *a{n - 1}]}}" for n in range(1, count)]
    return "\n".join(["a0: &a0 {x: 1}", *lines])


def test_exponential_merge_keys_are_refused():
    with pytest.raises(
        BadInput, match=r"bomb:15: merges mappings \(<<\) to more than 20,000 fields"
    ):
        yamlfiles.read(io.StringIO(merging(28)), "bomb")
    assert yamlfiles.read(io.StringIO(merging(6)), "small")[0][1]["a5"] == {"x": 1}
