"""``dljob reproduce afs``: the traces that it plays, and the figures of the paper."""

import pytest

from dljob.sim import policies
from dljob.sim.errors import BadInput
from dljob.sim.inputs.shipped import find_folder
from dljob_lab.reproducing import afs

TIMES = {
    "2869ce": {"srtf": 20.0, "srsf": 30.0, "max-min": 12.0, "afs-l": 10.0, "tiresias": 40.0},
    "b436b2": {"srtf": 15.0, "afs-l": 10.0, "afs-p": 16.0, "tiresias": 40.0},
}


def test_range_has_least_and_greatest_of_traces():
    rows = {(row.item, row.quantity): row for row in afs.iter_claims(TIMES)}
    least = rows["srtf / afs-l", "least avg jct ratio"]
    assert (least.paper, least.ours) == (1.2, 1.5)
    assert rows["srtf / afs-l", "greatest avg jct ratio"].ours == 2.0
    assert rows["tiresias / afs-p", "least avg jct ratio"].ours == 2.5


def test_every_trace_is_shipped():
    folder = find_folder()
    found = dict(afs._find_traces([folder / "peers", folder / "afs"]))
    assert tuple(found) == afs.CLUSTERS


def test_named_policies_can_be_made():
    names = (*afs.KNOWN_LENGTHS, *afs.UNKNOWN_LENGTHS)
    later = {name for name in names if name.partition(":")[0] not in policies.NAMES}
    assert later <= {"themis"}
    for name in names:
        if name not in later:
            policies.read(name)


def test_traces_come_from_a_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(afs, "KNOWN_LENGTHS", ("srtf", "afs-l"))
    monkeypatch.setattr(afs, "UNKNOWN_LENGTHS", ())
    with pytest.raises(BadInput, match=r"no trace of a Philly cluster is in it; name them"):
        afs.reproduce_from(None, [tmp_path])
    rows = [f"{i},{60 * i},{600 + 100 * (i % 7)},{1 + i % 4}" for i in range(40)]
    text = "\n".join(["job_id,submit_time_s,duration_s,num_gpus", *rows, ""])
    (tmp_path / "philly_2869ce.csv").write_text(text)
    seen = []
    result = afs.reproduce_from(lambda *progress: seen.append(progress), [tmp_path])
    assert seen == [("afs", 0, 1)]
    assert {row.item for row in result.rows} == {"srtf / afs-l", "philly_2869ce/srtf / afs-l"}


@pytest.mark.slow
def test_afs_is_faster_on_an_idle_cluster():
    path = find_folder() / "peers" / "philly_e13805.csv.gz"
    times = afs.play(path, ("srtf", "tiresias", "afs-l", "afs-p"))
    assert 1.2 <= times["srtf"] / times["afs-l"] <= 2.7
    assert 1.9 <= times["tiresias"] / times["afs-p"] <= 3.1
