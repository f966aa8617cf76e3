"""Coach's own runs, in the form of its author's files: choices, times, and epochs that take long."""

from pathlib import Path

import pytest

from dljob.sim.errors import BadInput
from dljob_lab.marginal_utility import Sample
from dljob_lab.reproducing import coach_runs

# Two tuning runs of less data and four mini-epochs, of which those with two workers have two answers; then the epochs.
JOB = """
	{{
		"id": "{id}",
		"nrOfEpochs": 3,
		"servers": [ 1, 1, 1, 2, 1, 1, 2, 2 | {servers} ],
		"workers": [ 1, 1, 1, 1, 2, 2, 2, 2 | 1, 1, 1 ],
		"time": [ 9.5, 24.2, 24.9, 33.1, 45.3, 45.4, 45.7, 45.7 | {times} ],
		"totalTime":{seconds}
	}}"""


def write(folder: Path, name: str, *jobs: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.txt").write_text(f"[{','.join(jobs)}\n]")


@pytest.fixture
def published(tmp_path: Path) -> Path:
    one = JOB.format(id="one", servers="1, 1, 1", times="25.0, 24.8, 24.7", seconds=740)
    slow = JOB.format(id="slow", servers="1, 1, 1", times="25.0, 25.0, 50.0", seconds="8.6E+02")
    third = JOB.format(id="third", servers="1, 1, 1", times="25.0, 24.8, 24.7", seconds=740)
    other = JOB.format(id="other", servers="2, 1, 1", times="25.0, 24.8, 24.7", seconds=800)
    write(tmp_path / "output", "repeated_three_gang_1", slow, third)
    write(tmp_path / "output", "repeated_three_default_1", other, one)
    write(tmp_path / "output2", "multi_job_three_83_tl_static_2w_2s", other)
    (tmp_path / "notes.txt").write_text("no list")
    return tmp_path


def test_bars_divide_the_tuning_from_the_training(published: Path):
    runs = coach_runs.read_runs(published)
    # A job that is in two files counts once, and a static one chose nothing.
    assert sorted(run.scheduler for run in runs) == ["default", "default", "gang", "gang"]
    [slow] = [run for run in runs if run.training[-1].per_s == 1.0 / 50.0]
    assert slow.tuning[:2] == (Sample(1, 1, 1.0 / 9.5), Sample(1, 1, 1.0 / 24.2))
    assert (len(slow.tuning), len(slow.training), slow.seconds) == (8, 3, 860.0)


def test_choices_and_stragglers_are_counted(published: Path):
    rows = {(row.item, row.quantity): row.ours for row in coach_runs.compare(published, None)}
    same = "choices the same"
    # One of four jobs had a server more in its first epoch than its epochs before speak for.
    assert rows["coach/first-epoch", same] == 75.0
    assert rows["coach/every-epoch", same] == pytest.approx(100.0 * 11 / 12)
    # One of the six epochs under the gang scheduler took twice the median of its job.
    assert rows["epochs/default", "straggling epochs"] == 0.0
    assert rows["epochs/gang", "straggling epochs"] == pytest.approx(100.0 / 6)
    assert rows["epochs/gang", "slowest by median"] == pytest.approx(2.0)
    assert rows["table-3/gang", "job mean"] == 800.0


def test_folder_without_runs_is_refused(tmp_path: Path):
    with pytest.raises(BadInput, match="name the folder JobHandler"):
        coach_runs.read_runs(tmp_path)
