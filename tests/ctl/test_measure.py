"""``dljob profiles measure``: a job runs on each number of GPUs, and what is learnt is kept."""

import asyncio
import csv
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from dljob.cli.verbs.server.measure import keep
from dljob.core.profiles import AccuracyPoint, Costs, JobType, Profile, Speed
from dljob.local.measuring import Bench, StuckError
from dljob.local.profiling import Course, profile_job
from dljob.store.opening import open_store
from dljob_lab.demonstrating.examples import load_example
from dljob_wire.messages import Shape

KIND = JobType("net", "data", 8)
SPEEDS = {1: 10.0, 2: 80.0}
"""So far apart that a busy machine does not change their order."""


@pytest.fixture
def job(tmp_path):
    """A file with a job that replays, and saves in a folder of its own."""
    with (tmp_path / "speeds.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(("gpu_type", "model", "global_batch_size", "num_gpus", "iterations_per_s"))
        rows.writerows(("A100", KIND.model, KIND.batch_size, *each) for each in SPEEDS.items())
    example = load_example("replay")
    document, saved = example.document, tmp_path / "saved"
    document["spec"] |= {
        "gpus": {"options": sorted(SPEEDS)},
        "training": {"iterations": 10**9, "batchSize": KIND.batch_size},
        "profile": {"model": KIND.model, "dataset": KIND.dataset},
    }
    document["spec"]["checkpoint"]["path"] = str(saved)
    pod = document["spec"]["template"]["spec"]
    del pod["volumes"], pod["containers"][0]["volumeMounts"]
    pod["containers"][0]["command"] = [
        *example.command,
        f"--speeds={tmp_path / 'speeds.csv'}",
        f"--model={KIND.model}",
        f"--batch={KIND.batch_size}",
        f"--iterations={10**9}",
        "--initialization=2",
        f"--checkpoint={saved}/iteration",
    ]
    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump(document))
    return path


@pytest.mark.processes
def test_speeds_and_all_costs_are_measured_and_kept(dljob, job, tmp_path, monkeypatch):
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    store = tmp_path / "profiles.db"
    result = dljob("profiles", "measure", job, "--cluster=1x2", "--seconds=1", "--store", store)
    assert result.status == 0, result.stderr
    assert "replay trains on 2 GPUs" in result.stderr
    opened = open_store(str(store), environment={})
    profile = opened.profiles()[KIND].profile
    opened.close()
    assert profile is not None
    measured = {shape.gpus: speed.iterations_per_s for shape, speed in profile.speeds.items()}
    # On a machine with much else to do it may fall behind, but hardly run ahead.
    assert 0 < measured[1] < SPEEDS[1] * 1.2
    assert measured[1] < measured[2] < SPEEDS[2] * 1.2
    assert set(profile.cost_samples) == {
        "checkpoint",
        "pod_initialization",
        "pod_termination",
        "process_initialization",
        "process_termination",
    }
    assert profile.costs is not None
    # The first step tells its end only: its begin follows from how fast the next ones came.
    assert profile.costs.process_initialization > 1.0
    assert f"Type: {KIND}" in result.stdout
    assert list((tmp_path / "tmp").iterdir()) == []


def test_measurement_joins_the_known_profile(tmp_path):
    store = open_store(str(tmp_path / "profiles.db"), environment={})
    known = Profile(KIND, {Shape(4, 1, ""): Speed(80.0)}, costs=Costs(checkpoint=9.0))
    store.change(KIND, lambda _: known)
    measured = Profile(
        KIND,
        {Shape(1, 1, ""): Speed(30.0, 1.0, (29.0, 31.0), 500.0)},
        accuracy=(AccuracyPoint(10.0, 0.5),),
        costs=Costs(process_initialization=2.0),
        cost_samples={"process_initialization": (2.0,)},
    )
    kept = keep(store, measured, 10.0)
    assert kept.speeds[Shape(1, 1, "")].recent == (29.0, 31.0)
    assert kept.speeds[Shape(4, 1, "")].iterations_per_s == 80.0
    assert kept.accuracy == (AccuracyPoint(10.0, 0.5),)
    assert kept.costs == Costs(checkpoint=9.0, process_initialization=2.0)
    stored = store.profiles()[KIND].profile
    assert stored is not None
    assert stored.says_the_same_as(kept)
    store.close()


def test_unmeasurable_job_is_refused_first(dljob, job, tmp_path):
    whole = yaml.safe_load(job.read_text(encoding="utf-8"))
    template = whole["spec"]["template"]
    for change, options, told in (
        ({}, ["--gpus=1,3"], "--gpus: 3 is not an option of the job; give some of 1, 2"),
        ({"profile": None}, [], "spec.profile.model: is missing; name the model"),
        ({}, ["--gpus=1,x"], "'1,x' is not a list of numbers of GPUs; write such as 1,2,4"),
        ({}, ["--cluster=1x1"], "there are 1 GPUs and 2 are to be measured"),
        ({"auxiliaries": [{"name": "ps", "template": template}]}, [], "needs a cluster"),
        ({}, ["--mini-epochs", "--gpus=1"], "--mini-epochs decides what to measure"),
    ):
        spec = whole["spec"] | change
        spec = {name: value for name, value in spec.items() if value is not None}
        job.write_text(yaml.safe_dump(whole | {"spec": spec}), encoding="utf-8")
        # The last of an option counts.
        words = ("--cluster=1x2", *options, "--store", tmp_path / "profiles.db")
        result = dljob("profiles", "measure", job, *words)
        assert result.status != 0
        assert told in result.stderr
    job.write_text(f"{job.read_text()}---\n{job.read_text()}")
    result = dljob("profiles", "measure", job, "--cluster=1x2")
    assert "holds 2 documents; put the job that you measure into a file of its own" in result.stderr


class Losing(Bench):
    """A bench whose job loses its GPUs after the first look at its speed."""

    def __init__(self, *, is_final):
        self.lost = SimpleNamespace(placement=None, is_final=is_final, message="exit code 3")
        placement = SimpleNamespace(shape=Shape(1, 1, ""))
        self.status = SimpleNamespace(placement=placement, is_final=False, message="")
        running: Any = SimpleNamespace(memory=self)
        self.running = running

    def put(self, _document, _gpus):
        return "replay"

    async def have(self, _job, _gpus, *, patience_s):
        pass

    def entry(self, _job):
        return SimpleNamespace(status=self.status, job=SimpleNamespace(type=KIND))

    def profiles(self):
        self.status = self.lost
        return {}


def test_a_job_that_loses_its_gpus_while_it_is_measured_is_stuck_with_the_reason(job):
    document = yaml.safe_load(job.read_text(encoding="utf-8"))
    course = Course(counts=[1], patience_s=-1.0)
    for is_final, words in ((True, "ended before it did train"), (False, "did not train")):
        with pytest.raises(StuckError, match=rf"replay {words}.*: exit code 3"):
            asyncio.run(profile_job(Losing(is_final=is_final), document, course=course))


@pytest.mark.slow
@pytest.mark.processes
def test_mini_epochs_measure_the_two_smallest_numbers_of_gpus(dljob, job, tmp_path):
    document = yaml.safe_load(job.read_text())
    document["spec"]["gpus"]["options"] = [1, 2, 4]
    job.write_text(yaml.safe_dump(document))
    store = tmp_path / "profiles.db"
    options = ("--cluster=1x2", "--seconds=0.5", "--mini-epochs", "--mechanism=in-place")
    result = dljob("profiles", "measure", job, *options, "--store", store)
    assert result.status == 0, result.stderr
    epochs = [line for line in result.stderr.splitlines() if "iterations on" in line]
    assert [line.rpartition(" on ")[2] for line in epochs] == ["1 GPU", "1 GPU", "2 GPUs", "2 GPUs"]
    # As many iterations in each: those that take three times --seconds with one GPU.
    (iterations,) = {int(line.split()[2]) for line in epochs}
    # On a busy machine the speed that this is computed from falls behind.
    assert 1 <= iterations <= 1.3 * 1.5 * SPEEDS[1]
    opened = open_store(str(store), environment={})
    profile = opened.profiles()[KIND].profile
    opened.close()
    assert profile is not None
    assert {shape.gpus for shape in profile.speeds} == {1, 2}
