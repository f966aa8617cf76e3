"""A record is written, read back, refused where it is damaged, and summed up."""

import json
from dataclasses import replace

import pytest

from dljob.core.model import NodeName, Placement
from dljob.core.recording.record import (
    LINES,
    VERSION,
    Clock,
    Decided,
    Ended,
    Expected,
    Given,
    Gpu,
    Happened,
    Header,
    Phase,
    Progress,
    Record,
    RecordError,
    Source,
    Stage,
    Submitted,
    decode,
    encode,
)
from dljob.core.recording.report import By, make_document, make_report
from dljob.core.recording.stretches import list_stretches
from dljob.core.recording.sums import Levels, cut, list_levels, list_spans
from tests.builders import sum_gpu_seconds

NODE = NodeName("n1")
ONE, TWO = Placement.of({NODE: (0,)}, "V100"), Placement.of({NODE: (0, 1)}, "V100")

WHOLE = Record.of(
    Header(source=Source.SIMULATION, clock=Clock.SIMULATED, until=100.0, policy="fifo"),
    [
        *(Gpu(at=0.0, node="n1", gpu=number, gpu_type="V100") for number in (0, 1)),
        Submitted(at=10.0, job="team/a", options=(1, 2), requested=2, priority=-5),
        Decided(
            at=10.0,
            job="team/a",
            step="start",
            generation=1,
            cause="ItsTurn",
            sentence="starts on 2 GPUs on n1",
            new=TWO,
            expected=Expected(iterations_per_second=2.5, confidence=0.5, remaining_seconds=40.0),
        ),
        Given(at=10.0, job="team/a", generation=1, placement=TWO),
        Phase(at=10.0, job="team/a", phase=Stage.ASKED, generation=1),
        Phase(at=12.0, job="team/a", phase=Stage.STARTED, generation=1),
        Phase(at=15.0, job="team/a", phase=Stage.FIRST_STEP, generation=1),
        Submitted(at=20.0, job="b", options=(1,)),
        Given(at=30.0, job="team/a", generation=2, placement=ONE, gpu_seconds=40.0),
        Given(at=30.0, job="b", generation=1, placement=Placement.of({NODE: (1,)}, "V100")),
        Progress(at=40.0, job="b", iteration=7.0, iterations_per_second=0.5, metric=-0.25),
        Happened(at=45.0, job="b", name="Crashed", message="exit code 1", warning=True),
        Gpu(at=50.0, node="n1", gpu=0, in_service=False, reason="ECC errors"),
        Ended(at=60.0, job="team/a", outcome="Completed", gpu_seconds=70.0, reshapes=1),
    ],
)


def test_record_survives_a_round_trip():
    lines = [*encode(WHOLE)]
    assert decode(lines, "it") == WHOLE
    assert {type(line) for line in WHOLE.lines} == set(LINES)
    first, *others = map(json.loads, lines)
    assert (first["format"], first["version"]) == ("dljob.io/record", VERSION)
    assert {each["kind"] for each in others} == {kind.__name__.lower() for kind in LINES}


def test_unknown_fields_are_ignored():
    header, *lines = encode(WHOLE)
    lines[2] = lines[2].replace('"kind"', '"moon":"full","kind"')
    assert decode([header, *lines], "it") == WHOLE


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ([], "it, line 1: this is not a record of DLJob"),
        (["job_id,submit_time_s\n"], "it, line 1: this is not a record of DLJob"),
        (['{"format":"dljob.io/record","version":2}\n'], "version 2, and this dljob reads none"),
        (
            ['{"format":"dljob.io/record","version":1,"source":"moon"}\n'],
            'line 1: source: "moon" is not',
        ),
        (["HEADER", '{"kind":"gpu","at":1'], "it, line 2: the line has no end"),
        (["HEADER", "{broken}\n"], "it, line 2: the message: is not JSON"),
        (
            ["HEADER", '{"kind":"moon","at":1}\n'],
            'it, line 2: kind: "moon" is not one of the words',
        ),
        (["HEADER", '{"kind":"gpu","at":NaN,"node":"n","gpu":0}\n'], "it, line 2"),
        (["HEADER", '{"kind":"gpu","at":-1,"node":"n","gpu":0}\n'], "it, line 2: at: "),
        (["HEADER", '{"kind":"ended","at":1,"job":"a"}\n'], "line 2: outcome: it is missing"),
        (
            ["HEADER", '{"kind":"given","at":1,"job":"a","placement":{"gpus":2,"nodes":[]}}\n'],
            "line 2: placement: is not the number of GPUs under nodes",
        ),
    ],
)
def test_damaged_or_newer_record_is_refused(wrong, message):
    header = next(encode(WHOLE))
    with pytest.raises(RecordError) as caught:
        decode([header if line == "HEADER" else line for line in wrong], "it")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_gpu_seconds_follow_the_grants():
    assert sum_gpu_seconds(WHOLE) == {"team/a": 70.0, "b": 70.0}
    assert [(span.job, span.begin, span.end, span.is_over) for span in list_spans(WHOLE)] == [
        ("team/a", 10.0, 30.0, True),
        ("team/a", 30.0, 60.0, True),
        ("b", 30.0, 100.0, False),
    ]


def test_levels_over_time():
    assert list_levels(WHOLE) == (
        Levels(0.0, queued=0, idle=2, in_service=2),
        Levels(10.0, queued=0, idle=0, in_service=2),
        Levels(20.0, queued=1, idle=0, in_service=2),
        Levels(30.0, queued=0, idle=0, in_service=2),
        # A job keeps its GPU when that goes out of service, and no other job gets it afterwards.
        Levels(50.0, queued=0, idle=0, in_service=1),
    )


def test_hidden_gpu_is_neither_idle_nor_out_of_service():
    held = Gpu(at=10.0, node="n1", gpu=0, in_service=False, held=True)
    free = replace(held, at=20.0, in_service=True, held=False)
    record = Record.of(WHOLE.header, [replace(free, at=0.0), held, free])
    assert list_levels(record) == (
        Levels(0.0, queued=0, idle=1, in_service=1),
        Levels(10.0, queued=0, idle=0, in_service=1),
        Levels(20.0, queued=0, idle=1, in_service=1),
    )
    report = make_report(record, By.TYPE)
    assert (report.held_by_others, report.out_of_service, report.idle) == (10.0, 0.0, 90.0)
    assert make_document(report)["heldByOthers"] == 10.0


def test_cut_begins_with_the_state_at_its_start():
    header = Header(source=Source.MACHINE, since=35.0, until=100.0)
    part = Record.of(header, cut(WHOLE.lines, 35.0))
    assert sum_gpu_seconds(part) == {"team/a": 25.0, "b": 65.0}
    assert list_levels(part)[0] == Levels(35.0, queued=0, idle=0, in_service=2)
    late = Record.of(Header(source=Source.MACHINE, since=70.0, until=100.0), cut(WHOLE.lines, 70.0))
    assert sum_gpu_seconds(late) == {"b": 30.0}


def test_phase_begins_with_the_last_node():
    header = Header(source=Source.MACHINE, until=20.0)
    reached = [(Stage.ASKED, "", 0.0), (Stage.SAVING, "n1", 1.0), (Stage.SAVING, "n2", 2.0)]
    reached += [(Stage.STOPPED, "n1", 3.0), (Stage.STOPPED, "n2", 5.0), (Stage.STARTED, "n1", 6.0)]
    lines = [
        Phase(at=at, job="a", phase=stage, generation=1, node=node) for stage, node, at in reached
    ]
    found = [(s.stage, s.begin, s.end) for s in list_stretches(Record.of(header, lines))]
    assert found == [
        (Stage.ASKED, 0.0, 1.0),
        (Stage.SAVING, 1.0, 5.0),
        (Stage.STOPPED, 5.0, 6.0),
        (Stage.STARTED, 6.0, 20.0),
    ]
