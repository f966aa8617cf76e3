"""``dljob simulate`` as its users and their programs know it."""

import csv
import gzip
from itertools import islice
from pathlib import Path

import pytest
import yaml

from dljob.cli.output.bars import Bar
from dljob.core.documents import profilefile
from dljob.core.profiles import Costs, JobType, Profile, Speed
from dljob.sim import policies
from dljob.sim.results import writing
from dljob_wire.messages import Shape
from tests.ctl.running import HEADER, TRACES, run_apart
from tests.sim.test_own_policies import OWN
from tests.sim.worlds import write_short

MEASURED = {"decision_ms", "wall_s", "peak_rss_mb"}
FIELDS = {
    "policy",
    "trace",
    "jobs",
    "dropped",
    "avg_jct_s",
    "p50_jct_s",
    "p95_jct_s",
    "p99_jct_s",
    "makespan_s",
    "utilization",
    "cluster_efficiency",
    "avg_queue",
    "blocking_index",
    "reshapes",
    "reshape_share",
    "lost_work_s",
    "decisions",
    "decision_ms",
    "wall_s",
    "peak_rss_mb",
    "seed",
}
"""Programs rely on these keys; more may come."""

PEERS = ("--rigid", "--placement", "counted", "--restart-cost", 0, "--gpus", 64)


def chosen(*names: str) -> list[str]:
    return [word for name in names for word in ("--policy", name)]


# --- figures ------------------------------------------------------------------------------


def test_the_published_figures_of_a_trace_come_out_of_the_command(dljob):
    with (TRACES / "peer_figures.csv").open(encoding="utf-8") as file:
        published = [row for row in csv.DictReader(file) if row["trace"] == "philly_2869ce"][:2]
    result = dljob(
        "simulate",
        TRACES / "philly_2869ce.csv.gz",
        *PEERS,
        *chosen(*(row["policy"] for row in published)),
        *("-o", "json"),
    )
    assert result.status == 0
    for row, score in zip(published, result.data, strict=True):
        assert score["policy"] == row["policy"]
        assert f"{score['avg_jct_s']:.1f}" == row["avg"]
        for percent in ("p50", "p95", "p99"):
            assert f"{score[f'{percent}_jct_s']:.0f}" == row[percent]
        assert f"{score['makespan_s']:.0f}" == row["makespan"]


def test_json_has_the_fields_that_programs_rely_on(dljob, folder):
    (score,) = dljob("simulate", "five.csv", "--gpus", 8, "-o", "json").data
    assert score.keys() >= FIELDS
    assert score["decision_ms"].keys() == {"p50", "p99", "max"}
    assert score["policy"] == "foresight"
    assert score["trace"] == "five"
    assert score["seed"] == 0
    assert score["mechanism"] == "in-place"
    for share in ("utilization", "reshape_share"):
        assert 0.0 <= score[share] <= 1.0


def test_unfinished_jobs_are_null_and_named(dljob, folder):
    (folder / "lost.csv").write_text("time_s,node,event\n10,node-0,lost\n", encoding="utf-8")
    result = dljob(
        *("simulate", "five.csv", "--gpus", 8, "--failures", "lost.csv", "-o", "json"),
        *chosen("fifo"),
    )
    (score,) = result.data
    assert result.status == 0
    assert score["avg_jct_s"] is None
    assert score["unfinished"] == 5
    assert result.stderr == (
        "fifo: 5 jobs (id 0, 1, 2, 3, 4) never finished; figures of completions leave them out\n"
    )


def test_jobs_too_large_are_dropped_counted_and_named(dljob, folder):
    result = dljob("simulate", "five.csv", "--gpus", 4, "-o", "json", *chosen("fifo", "srtf"))
    assert [score["dropped"] for score in result.data] == [1, 1]
    assert [score["jobs"] for score in result.data] == [4, 4]
    assert result.stderr == (
        "dropped 1 job (id 1): more GPUs requested than the cluster has of a type\n"
    )


# --- options ------------------------------------------------------------------------------


def test_a_world_is_played_by_its_name(dljob, folder):
    trace = ("simulate", TRACES / "tiresias_60_job.csv.gz", "--window", 20, "--policy", "srsf")
    (plain,) = dljob(*trace, "--cluster", "2x4", "-o", "json").data
    (there,) = dljob(*trace, "--cluster", "2x4", "-o", "json", "--world", "afs").data
    assert there["jobs"] + there["dropped"] == 20
    assert there["unfinished"] == 0
    assert there["avg_jct_s"] != plain["avg_jct_s"]
    result = dljob("simulate", "five.csv", "--world", "utopia")
    assert (result.status, result.stdout) == (2, "")
    assert "'utopia' is not one of 'afs', 'pollux', 'sia'" in result.stderr


def test_a_world_brings_its_cluster_and_costs_unless_others_are_given(dljob, folder):
    (folder / "one.csv").write_text(HEADER + "0,0,1000,4\n", encoding="utf-8")
    options = ("simulate", "one.csv", "--rigid", "--policy", "fifo", "-o", "json", "--world", "afs")
    assert dljob(*options).data[0]["avg_jct_s"] == 1000.0, "AFS charges nothing"
    assert dljob(*options, "--restart-cost", 7).data[0]["avg_jct_s"] == 1007.0
    result = dljob(*options, "--cluster", "1x2")
    assert result.status == 1
    assert "no job that fits into 2 GPUs" in result.stderr


# What each of them does is in tests/sim.
def test_each_option_reaches_the_simulation(dljob, folder):
    header = "gpu_type,model,global_batch_size,num_gpus,iterations_per_s"
    rows = "".join(f",flat,32,{gpus},{1 + 1e-6 * gpus}\n" for gpus in (1, 2, 4, 8))
    (folder / "speeds.csv").write_text(f"{header}\n{rows}", encoding="utf-8")
    options = ("simulate", "five.csv", "--cluster", "4x2", *chosen("adaptive"), "-o", "json")

    def play(*more):
        (score,) = dljob(*options, *more).data
        return {name: each for name, each in score.items() if name in FIELDS - MEASURED}

    usual = play()
    for more in (
        ("--cluster", "1x4:V100,1x4:K80"),
        ("--mechanism", "recreate"),
        ("--placement", "counted"),
        ("--period", 300),
        ("--speeds", "speeds.csv"),
        ("--known", "mini-epochs"),
        ("--size-error", 0.5),
        ("--speed-error", 0.5),
        ("--restart-cost", 7.5),
        ("--window", 3),
        ("--load", 0.9),
    ):
        assert play(*more) != usual, more
    believed = play("--known", "mini-epochs", "--predictor", "marginal-utility")
    assert believed != play("--known", "mini-epochs")
    by_queue, other = (f"tiresias{more}" for more in ("", ":thresholds=100,200:exact=true"))
    result = dljob("simulate", "five.csv", "--gpus", 8, *chosen(by_queue, other), "-o", "json")
    assert [score["policy"] for score in result.data] == [by_queue, other]
    assert result.data[0]["avg_jct_s"] != result.data[1]["avg_jct_s"]


def test_nodes_fail_and_come_back(dljob, folder):
    (folder / "one.csv").write_text(HEADER + "0,0,1000,4\n", encoding="utf-8")
    (folder / "failures.csv").write_text(
        "time_s,node,event\n700,node-0,back\n300,node-0,lost\n", encoding="utf-8"
    )
    options = ("simulate", "one.csv", "--gpus", 4, "--rigid", "--restart-cost", 0, "-o", "json")
    (score,) = dljob(*options, "--failures", "failures.csv").data
    # It had trained 300 s, saved nothing by then, and begins again at 700 s.
    assert score["avg_jct_s"] == 1700.0


SHARED = HEADER + "a/1,0,1000,2\na/2,0,1000,2\nb/1,0,1000,2\nloose,0,1000,2\n"


def test_replay_keeps_namespace_limits(dljob, folder):
    (folder / "shared.csv").write_text(SHARED, encoding="utf-8")
    options = ("simulate", "shared.csv", "--gpus", 8, "--rigid", "--restart-cost", 0)
    for limits, ends in (
        ((), {"a/1": 1000, "a/2": 1000, "b/1": 1000, "loose": 1000}),
        (("--max-gpus", "a=2"), {"a/1": 1000, "a/2": 2000, "b/1": 1000, "loose": 1000}),
        (("--max-gpus", "a=2,*=0"), {"a/1": 1000, "a/2": 2000}),
        (("--max-priority", "a=0,*=-1"), {"a/1": 1000, "a/2": 1000}),
    ):
        result = dljob(*options, "--policy", "gang-fifo", "--jobs-out", "jobs.csv", *limits)
        assert result.status == 0, result.stderr
        with (folder / "jobs.csv").open() as file:
            rows = {
                row["job_id"]: float(row["completed_s"])
                for row in csv.DictReader(file)
                if row["completed_s"]
            }
        assert rows == pytest.approx(ends)
    for text, told in (
        ("a:8", "write such as team-a=8,*=4"),
        ("A=8", "is no name of a namespace"),
        ("a=-1", "0 or more"),
    ):
        result = dljob("simulate", "shared.csv", "--max-gpus", text)
        assert (result.status, told in result.stderr) == (2, True)


def write_beginning(trace: str, path: Path, *, jobs: int) -> None:
    """
    Write the first jobs of a trace, a hundred times as fast.

    Policies that decide in rounds would decide for months otherwise.
    """
    with gzip.open(TRACES / f"{trace}.csv.gz", "rt", encoding="utf-8") as whole:
        rows = list(islice(csv.DictReader(whole), jobs))
    for row in rows:
        for name in ("submit_time_s", "duration_s"):
            row[name] = str(float(row[name]) / 100.0)
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)


@pytest.mark.slow
@pytest.mark.timeout(2700)
def test_every_policy_plays_a_real_trace_on_nodes_that_fail(dljob, folder):
    (folder / "failures.csv").write_text(
        "time_s,node,event\n2000,node-0,lost\n4000,node-0,back\n10000,node-1,lost\n"
        "10005,node-1,back\n",
        encoding="utf-8",
    )
    write_beginning("philly_7f04ca", folder / "beginning.csv", jobs=120)
    result = dljob(
        *("simulate", "beginning.csv", "--cluster", "2x8:V100,2x8:P100"),
        *("--failures", "failures.csv", "-o", "json"),
        *chosen(*map(write_short, policies.NAMES)),
    )
    assert result.status == 0
    assert [score["unfinished"] for score in result.data] == [0] * len(policies.NAMES)


# --- files --------------------------------------------------------------------------------


def test_jobs_out_has_a_row_a_job_and_policy(dljob, folder):
    result = dljob(
        *("simulate", "five.csv", "--gpus", 4, "--jobs-out", "out/jobs.csv", "-o", "json"),
        *chosen("fifo", "adaptive"),
    )
    with Path("out/jobs.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 10
    assert [row["policy"] for row in rows] == ["fifo"] * 5 + ["adaptive"] * 5
    assert {row["job_id"] for row in rows if row["outcome"] == "dropped"} == {"1"}
    done = [row for row in rows if row["policy"] == "fifo" and row["outcome"] == "completed"]
    mean = sum(float(row["jct_s"]) for row in done) / len(done)
    assert mean == pytest.approx(result.data[0]["avg_jct_s"])


def test_a_file_that_was_there_stays_when_a_run_fails(dljob, folder):
    Path("jobs.csv").write_text("mine", encoding="utf-8")
    (folder / "wide.csv").write_text(HEADER + "0,0,10,64\n", encoding="utf-8")
    result = dljob("simulate", "wide.csv", "--gpus", 8, "--jobs-out", "jobs.csv", "--plot")
    assert result.status == 1
    assert Path("jobs.csv").read_text(encoding="utf-8") == "mine"
    assert sorted(path.name for path in folder.iterdir()) == ["five.csv", "jobs.csv", "wide.csv"]


@pytest.mark.slow
def test_pictures_go_to_plots_unless_a_folder_is_named(dljob, folder):
    result = dljob("simulate", "five.csv", "--gpus", 4, *chosen("fifo"), "-o", "json", "--plot")
    # Nothing but data is on standard output.
    assert len(result.data) == 1
    assert result.stderr.splitlines() == [
        "dropped 1 job (id 1): more GPUs requested than the cluster has of a type",
        "8 pictures are in plots/",
    ]
    names = {"gpus", "jct", "jobs", "changes"}
    expected = {f"five-{name}.{form}" for name in names for form in ("png", "svg")}
    assert {path.name for path in (folder / "plots").iterdir()} == expected
    # For papers they are PDF alone.
    options = ("--plot=a/b", "--plot-format", "pdf", "--plot-width", "column")
    result = dljob("simulate", "five.csv", "--gpus", 8, *chosen("fifo"), *options)
    assert result.stderr == "4 pictures are in a/b/\n"
    assert {path.suffix for path in (folder / "a" / "b").iterdir()} == {".pdf"}
    refused = dljob("simulate", "five.csv", "--plot-format", "tiff")
    assert "'tiff' is not one of png, svg, pdf" in refused.stderr


# --- the same again -----------------------------------------------------------------------


@pytest.mark.processes
@pytest.mark.story
def test_the_same_run_prints_the_same_bytes_in_any_process(dljob, folder):
    write_beginning("philly_e13805", folder / "beginning.csv", jobs=40)
    options = (
        *("simulate", "beginning.csv", "--cluster", "4x4:V100,4x4:K80", "--seed", 7),
        *("-o", "json", "--jobs-out", "jobs.csv"),
        *chosen("fifo", "tiresias", "foresight", "kube-default", "max-min"),
    )

    def figures(result):
        assert result.status == 0, result.stderr
        scores = [{**score, **dict.fromkeys(MEASURED)} for score in result.data]
        return scores, Path("jobs.csv").read_bytes()

    here = figures(dljob(*options))
    assert figures(run_apart(*options, cwd=folder, PYTHONHASHSEED="7")) == here


def test_seed_decides_all_draws(dljob, folder):
    options = ("simulate", "five.csv", "--gpus", 8, "-o", "json", *chosen("kube-default"))
    by_seed = {dljob(*options, "--seed", seed).data[0]["avg_jct_s"] for seed in range(6)}
    assert len(by_seed) > 1


# --- people -------------------------------------------------------------------------------


class Spied:
    """Stands where a progress bar is drawn, and notes what is drawn."""

    def __init__(self) -> None:
        self.shown = False
        self.at: list[float] = []

    def start(self) -> None:
        self.shown = True

    def add_task(self, label: str, *, total: int) -> int:
        return 0

    def update(self, task: int, *, completed: int, total: int) -> None:
        self.at.append(completed / total)


def test_a_bar_appears_only_when_there_is_something_to_wait_for(monkeypatch):
    clock = iter([0.0, 0.5, 2.0, 2.01, 3.0, 3.01])
    monkeypatch.setattr("dljob.cli.output.bars.time.monotonic", lambda: next(clock))
    spied = Spied()
    bar = Bar(spied)  # type: ignore[arg-type]
    bar.watch("fifo", 1, 10)
    bar.watch("fifo", 2, 10)
    early = spied.shown
    for done in (3, 4, 9, 10):
        bar.watch("fifo", done, 10)
    assert (early, spied.shown) == (False, True)
    # Progress that comes too soon after the last is left out, but never the end.
    assert spied.at == [0.3, 0.9, 1.0]


def test_special_file_is_written_and_never_replaced(tmp_path):
    target, link = tmp_path / "target.csv", tmp_path / "link.csv"
    target.write_text("old\n")
    link.symlink_to(target)
    with writing.replacing(link) as draft:
        draft.write_text("new\n")
    assert (link.is_symlink(), target.read_text()) == (True, "new\n")
    with writing.replacing(Path("/dev/null")) as draft:
        assert draft == Path("/dev/null")
    assert Path("/dev/null").is_char_device()


def test_measured_profiles_bring_speeds_and_costs(dljob, folder):
    costs = Costs(
        pod_initialization=7.0, process_initialization=5.0, checkpoint=2.0, pod_termination=90.0
    )
    kind = JobType("net", "data", 8)
    profile = Profile(kind, {Shape(2, 1, ""): Speed(4.0)}, costs=costs)
    Path("profiles.yaml").write_text(yaml.safe_dump(profilefile.render(profile)))
    job = {
        "apiVersion": "dljob.io/v1alpha1",
        "kind": "DLJob",
        "metadata": {"name": "one"},
        "spec": {
            "gpus": {"options": [2]},
            "training": {"iterations": 400, "batchSize": 8},
            "profile": {"model": "net", "dataset": "data"},
        },
    }
    Path("job.yaml").write_text(yaml.safe_dump(job))
    result = dljob("simulate", "job.yaml", "--gpus=2", "--profiles=profiles.yaml", "-o", "json")
    assert result.data[0]["avg_jct_s"] == pytest.approx(7.0 + 5.0 + 400 / 4.0)


def test_a_wrong_part_or_error_is_refused(dljob, folder):
    for option, value, told in (
        ("--load", "nan", "not a load from 0.001 to 1000"),
        ("--speed-error", "-0.1", "not an error from 0 to 3"),
        ("--window", "0", "--window"),
        ("--sizes", "guessed", "--sizes"),
    ):
        result = dljob("simulate", "five.csv", option, value)
        assert (result.status, told in result.stderr) == (2, True)


# --- Ctrl-C -------------------------------------------------------------------------------


def interrupt_at(monkeypatch, name: str) -> None:
    """Press Ctrl-C while this policy decides."""
    kind = policies.POLICIES[name]

    def allocate(_self, _view):
        raise KeyboardInterrupt

    monkeypatch.setattr(kind, "allocate", allocate)


def test_ctrl_c_prints_the_played_part(dljob, folder, monkeypatch):
    interrupt_at(monkeypatch, "srsf")
    result = dljob(
        *("simulate", "five.csv", "--gpus", 8, "-o", "json", "--jobs-out", "jobs.csv"),
        *chosen("fifo", "srtf", "srsf", "max-min"),
    )
    assert result.status == 130
    assert [score["policy"] for score in result.data] == ["fifo", "srtf"]
    assert result.stderr == (
        "interrupted: 2 of 4 policies were played to the end; srsf, max-min are missing\n"
    )
    with (folder / "jobs.csv").open(encoding="utf-8") as file:
        assert {row["policy"] for row in csv.DictReader(file)} == {"fifo", "srtf"}


# --- a policy of one's own ----------------------------------------------------------------


def test_policy_of_a_file_is_played_with_others(dljob, folder):
    (folder / "own.py").write_text(OWN, encoding="utf-8")
    names = ("own.py:ShortestName", "fifo")
    result = dljob("simulate", "five.csv", "--gpus", 8, "-o", "json", *chosen(*names))
    assert [score["policy"] for score in result.data] == list(names)
    kept = ("--jobs", 1, "--resume", "kept.jsonl", "-o", "json")
    rows = dljob("compare", "five.csv", "--gpus", 8, *chosen(*names), *kept).data
    assert [row["avg_jct_s"] for row in rows] == [score["avg_jct_s"] for score in result.data]
    again = dljob("compare", "five.csv", "--gpus", 8, *chosen(*names), *kept)
    assert again.stderr == "2 of 2 results exist already\n"


def test_dljob_up_takes_no_policy_of_a_file(dljob, folder):
    (folder / "own.py").write_text(OWN, encoding="utf-8")
    result = dljob("up", "--gpus", 1, "--state", "state", "--policy", "own.py:ShortestName")
    assert result.status == 2
    assert "only dljob simulate and compare play the policies of files" in result.stderr
