"""The length of Shockwave's jobs follows from their batch sizes."""

import math
from pathlib import Path

import pytest

from dljob.sim.errors import BadInput
from dljob.sim.inputs.shipped import find_folder
from tests.sim.worlds import read_workload

HEADER = "job_id,submit_time_s,job_type,num_gpus,total_steps,adaptation_mode,duration_s\n"
RESNET_32, RESNET_64, RESNET_128, RESNET_256 = 42.975, 21.433, 11.775, 6.32
"""Steps per second of a ResNet-18 on one GPU at these batch sizes, rounded."""


def read_length(folder: Path, row: str) -> float:
    path = folder / "trace.csv"
    path.write_text(f"{HEADER}{row}\n", encoding="utf-8")
    workload = read_workload(path, gpu_types=("V100",), largest=32, node_gpus=32)
    (traced,) = workload.jobs
    assert traced.job.gpus.options == (traced.job.gpus.requested,)
    return traced.iterations


def make_row(mode: str, epochs: int) -> str:
    steps = epochs * math.ceil(50_000 / 32)
    seconds = steps / RESNET_32
    return f"0,0,ResNet-18 (batch size 32),1,{steps},{mode},{seconds}"


def seconds_of(*parts: tuple[int, int, float]) -> float:
    """Add up the seconds of epochs, each part at its batch size and speed."""
    return sum(epochs * 50_000 / batch / speed for epochs, batch, speed in parts)


def test_gns_doubles_the_batch_at_measured_epochs(tmp_path):
    expected = seconds_of(
        (21, 32, RESNET_32), (10, 64, RESNET_64), (20, 128, RESNET_128), (9, 256, RESNET_256)
    )
    assert read_length(tmp_path, make_row("gns", 60)) == pytest.approx(expected, rel=1e-3)


def test_accordion_uses_the_largest_batch_when_uncritical(tmp_path):
    # Of 200 epochs 0 to 60 are in the first 30 %, and 150 to 159 critical.
    expected = seconds_of((61 + 10, 32, RESNET_32), (200 - 71, 256, RESNET_256))
    assert read_length(tmp_path, make_row("accordion", 200)) == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize(
    ("row", "field"),
    [
        ("0,0,ResNet-18 (batch size 32),1,9,sometimes,60", "adaptation_mode"),
        ("0,0,ResNet-18 (batch size 33),1,9,gns,60", "job_type"),
        ("0,0,ResNet-18,1,9,gns,60", "job_type"),
        ("0,0,ResNet-18 (batch size 32),3,9,gns,60", "job_type"),
    ],
)
def test_unmeasured_row_is_refused(tmp_path, row, field):
    with pytest.raises(BadInput) as caught:
        read_length(tmp_path, row)
    assert (caught.value.line, caught.value.field) == (2, field)


def test_authors_trace_is_shipped_whole():
    workload = read_workload(
        find_folder() / "shockwave" / "shockwave_120.csv.gz",
        rigid=True,
        gpu_types=("V100",),
        largest=32,
    )
    assert len(workload.jobs) == 120
    # 19,850 s on 32 GPUs at best, where the shortest of their makespans is 24,197 s.
    work = sum(each.iterations * each.job.gpus.requested for each in workload.jobs)
    assert work / 32 == pytest.approx(19_850, rel=0.01)
