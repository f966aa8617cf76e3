"""Traces of all formats are read, and a fault is reported in one line."""

import gzip
from pathlib import Path

import pytest

from dljob.sim.errors import BadInput
from dljob.sim.inputs.traces import Kind, read_trace

TRACES = Path(__file__).parents[1] / "data" / "traces"
HEADER = "job_id,submit_time_s,duration_s,num_gpus\n"
GOOD = HEADER + "0,0,60,1\n1,30,45.5,4\n"


def write(folder: Path, content: str | bytes, name: str = "trace.csv") -> Path:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


@pytest.mark.parametrize(
    ("name", "kind", "jobs"),
    [
        ("philly_2869ce", Kind.DURATIONS, 422),
        ("philly_full_7f04ca", Kind.DURATIONS, 1494),
        ("itp_cluster06", Kind.DURATIONS, 2396),
        ("itp_cluster01_models", Kind.MODELS, 1595),
        ("gavel_continuous_96", Kind.GAVEL, 96),
        ("gavel_static_100", Kind.GAVEL, 100),
        ("tiresias_60_job", Kind.ITERATIONS, 60),
        ("pollux_1.0_workload-1", Kind.POLLUX, 160),
    ],
)
def test_format_is_recognised_by_its_header(name, kind, jobs):
    trace = read_trace(TRACES / f"{name}.csv.gz")
    assert (trace.kind, len(trace.requests)) == (kind, jobs)


def test_jobs_are_sorted_by_submission(tmp_path):
    path = write(tmp_path, HEADER + "c,9,1,1\nb,0,1,1\na,0,1,1\n")
    assert [request.id for request in read_trace(path).requests] == ["b", "a", "c"]


@pytest.mark.parametrize(
    "content",
    [
        GOOD,
        "\ufeff" + GOOD,
        GOOD.replace("\n", "\r\n"),
        GOOD.replace(",", " , "),
        GOOD + "\n\n",
        "note,num_gpus,duration_s,submit_time_s,job_id\nx,1,60,0,0\ny,4,45.5,30,1\n",
    ],
    ids=["plain", "mark", "windows", "spaces", "blank lines", "other order and columns"],
)
def test_harmless_variations_are_accepted(tmp_path, content):
    requests = read_trace(write(tmp_path, content)).requests
    assert [(r.id, r.submitted_at, r.duration, r.gpus) for r in requests] == [
        ("0", 0.0, 60.0, 1),
        ("1", 30.0, 45.5, 4),
    ]


@pytest.mark.parametrize(
    ("rows", "line", "field"),
    [
        ("0,0,60\n", 2, ""),
        ("0,0,60,1,9\n", 2, ""),
        ("0,0,,1\n", 2, "duration_s"),
        ("0,0,1e999,1\n", 2, "duration_s"),
        ("0,NaN,60,1\n", 2, "submit_time_s"),
        ("0,0,60,0\n", 2, "num_gpus"),
        ("0,0,60,1_0\n", 2, "num_gpus"),
        ("0,0,60," + "9" * 5000 + "\n", 2, "num_gpus"),
        (",0,60,1\n", 2, "job_id"),
        ("0,0,60,1\n1,5,60,1\n0,9,60,1\n", 4, "job_id"),
        ("", 1, ""),
        ('0,0,"60,1\n', 2, ""),
    ],
)
def test_malformed_row_has_line_and_field(tmp_path, rows, line, field):
    path = write(tmp_path, HEADER + rows)
    with pytest.raises(BadInput) as caught:
        read_trace(path)
    assert (caught.value.line, caught.value.field) == (line, field)
    assert one_line(caught.value).startswith(f"{path}:{line}: ")


@pytest.mark.parametrize(
    ("header", "missing"),
    [
        ("job_id,submit_time_s,duration_s\n", "num_gpus"),
        ("job_id,submit_time_s,duration,num_gpus\n", "duration_s"),
        ("job_id,submit_time_s,duration_s,num_gpus,model,global_batch_size\n", "iterations"),
        ("job_id,submit_time_s,job_type,num_gpus\n", "total_steps"),
        ("name,time,application,num_replicas\n", "batch_size"),
        ("job_id,submit_time_s,duration_s,num_gpus,num_gpus\n", "num_gpus"),
    ],
)
def test_wrong_header_names_the_column(tmp_path, header, missing):
    with pytest.raises(BadInput) as caught:
        read_trace(write(tmp_path, header + "0,0,60,1\n"))
    assert (caught.value.line, caught.value.field) == (1, missing)
    one_line(caught.value)


@pytest.mark.parametrize(
    ("content", "name", "words"),
    [
        ("", "trace.csv", "is empty"),
        ("a,b,c\n1,2,3\n", "trace.csv", "is not the header of a trace"),
        (b"\x00\xff\xfe", "trace.csv", "is not UTF-8"),
        (GOOD.encode(), "trace.csv.gz", "gzip"),
        (gzip.compress(GOOD.encode(), mtime=0)[:-9], "trace.csv.gz", "gzip"),
        (b"", "trace.csv.gz", "is empty"),
        (None, "nothing.csv", "cannot be read"),
        (None, "", "cannot be read"),
    ],
)
def test_unreadable_trace_is_refused(tmp_path, content, name, words):
    path = tmp_path / name if content is None else write(tmp_path, content, name)
    with pytest.raises(BadInput, match=words) as caught:
        read_trace(path)
    one_line(caught.value)


def one_line(error: BadInput) -> str:
    """Check that the message is one line with a remedy, and return it."""
    text = str(error)
    assert len(text.splitlines()) == 1
    assert len(text) < 600
    assert error.remedy in text
    assert error.remedy
    return text
