"""``dljob reproduce afs``: its traces and models, and the figures of the paper."""

from collections import Counter
from math import isnan

import pytest

from dljob.sim import policies
from dljob.sim.errors import BadInput
from dljob.sim.inputs.shipped import find_folder
from dljob_lab.reproducing.afs import evaluation as afs
from dljob_lab.reproducing.afs.plays import Figures, Task, Variant, play
from dljob_lab.reproducing.afs.workload import CLUSTERS, MODELS, draw_model, make_workload
from dljob_lab.reproducing.findings import Verdict

FOLDERS = [find_folder() / "afs", find_folder() / "peers"]
IDLE = find_folder() / "peers" / "philly_e13805.csv.gz"


def taking(*seconds):
    return [Figures(frozenset("ab"), each, 2 * each, 1.0, 0.5, 0.1) for each in seconds]


PLAYED = {
    "2869ce": {
        "srtf": taking(20.0, 22.0),
        "srsf": taking(30.0, 30.0),
        "max-min": taking(12.0, 12.0),
        "afs-l": taking(10.0, 10.0),
        "tiresias": taking(40.0, 44.0),
    },
    "b436b2": {
        "srtf": taking(15.0, 15.0),
        "srsf": taking(15.0, 15.0),
        "max-min": taking(99.0, 99.0),
        "afs-l": taking(10.0, 10.0),
        "afs-p": taking(16.0, 16.0),
        "tiresias": taking(40.0, 40.0),
    },
}
ROWS = {(row.item, row.quantity): row for row in afs.make_rows(PLAYED)}


def test_range_has_least_and_greatest_of_traces():
    least = ROWS["all traces/srtf over afs-l", "least avg jct ratio"]
    assert (least.paper, least.ours, least.spread) == (1.2, 1.5, 0.0)
    greatest = ROWS["all traces/srtf over afs-l", "greatest avg jct ratio"]
    assert (greatest.ours, greatest.spread) == (pytest.approx(2.1), pytest.approx(0.1414, abs=1e-4))
    assert ROWS["all traces/tiresias over afs-p", "least avg jct ratio"].ours == 2.5


def test_max_min_is_counted_where_it_is_ahead_of_both():
    row = ROWS["all traces/max-min ahead of srtf and srsf", "traces"]
    assert (row.paper, row.ours) == (5, 1)


def test_figures_that_were_not_tried_are_listed():
    missing = [row for row in ROWS.values() if isnan(row.ours)]
    assert [row.paper for row in missing] == [2.12, 2.82, 1.19, 1.30]
    assert {row.verdict for row in missing} == {Verdict.NOT_TRIED}


def test_every_trace_is_shipped():
    assert tuple(dict(afs.find_traces(FOLDERS))) == tuple(CLUSTERS)
    assert sum(CLUSTERS.values()) == 109_861


def test_named_policies_can_be_made():
    names = {variant.name for variant in afs.VARIANTS}
    assert {name for pair in afs.PAIRS for name in pair} <= names
    assert {name for claim in afs.CLAIMS for name in (claim.slower, claim.faster)} <= names
    for variant in afs.VARIANTS:
        policies.read(variant.policy)


def test_models_scale_as_far_as_table_4_says():
    assert [model.most for model in MODELS] == [8, 20, 52, 28, 20, 28, 4, 20, 44]
    workload = make_workload(IDLE, "e13805", seed=0)
    most = {f"{model.name}@1": model.useful for model in MODELS}
    for traced in workload.jobs:
        assert traced.job.gpus.options[-1] <= max(
            most.get(traced.job.type.model, 64), traced.job.gpus.requested
        )
        assert {n for n in traced.job.gpus.options if n > 2 and n % 4} == set()
        assert "T4" not in {shape.gpu_type for shape in workload.truths[traced.job.type].speeds}


def test_a_job_gets_a_model_that_scales_to_its_request():
    drawn = Counter(draw_model(28, f"0/x/{number}").name for number in range(200))
    assert set(drawn) == {"Inception-v4", "ResNet-50", "Video Prediction", "Transformer"}
    assert min(drawn.values()) > 25
    assert draw_model(64, "0/x/1").name == "Inception-v4"


def test_lots_differ_by_seed_and_by_trace():
    def kinds(cluster, seed):
        return [each.job.type for each in make_workload(IDLE, cluster, seed=seed).jobs]

    assert kinds("e13805", 0) == kinds("e13805", 0)
    assert kinds("e13805", 0) != kinds("e13805", 1)
    assert kinds("e13805", 0) != kinds("2869ce", 0)


def test_a_greedy_job_requests_the_most_and_has_the_same_work():
    usual, greedy = (
        make_workload(IDLE, "e13805", seed=0, is_greedy=each).jobs for each in (False, True)
    )
    assert [job.iterations for job in usual] == [job.iterations for job in greedy]
    for before, after in zip(usual, greedy, strict=True):
        assert after.job.gpus.requested == max(after.job.gpus.options)
        assert before.job.gpus.requested <= after.job.gpus.requested


def test_traces_come_from_a_folder(tmp_path, monkeypatch):
    chosen = [each for each in afs.VARIANTS if each.name in ("srtf", "afs-l")]
    monkeypatch.setattr(afs, "VARIANTS", chosen)
    with pytest.raises(BadInput, match=r"no trace of a Philly cluster is in it; name them"):
        afs.reproduce_from(None, [tmp_path])
    rows = [f"{i},{60 * i},{600 + 100 * (i % 7)},{1 << i % 3}" for i in range(40)]
    text = "\n".join(["job_id,submit_time_s,duration_s,num_gpus", *rows, ""])
    (tmp_path / "philly_2869ce.csv").write_text(text)
    seen = []
    result = afs.reproduce_from(lambda *progress: seen.append(progress), [tmp_path])
    assert seen == [("afs", 1, 2), ("afs", 2, 2)]
    assert "2869ce/srtf over afs-l" in {row.item for row in result.rows}
    assert result.notes[0] == "40 of the 109,861 jobs of the paper's Table 3 are played"


@pytest.mark.slow
def test_afs_is_faster_on_an_idle_cluster():
    def mean(policy):
        return play(Task("e13805", IDLE, Variant(policy, policy), seed=0)).avg_jct_s

    assert mean("srtf") > 1.2 * mean("afs-l")
    assert mean("tiresias") > 1.2 * mean("afs-p")
