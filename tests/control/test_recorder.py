"""The record of a controller has the phases that it missed, and nothing twice over a restart."""

from dataclasses import replace

import pytest

from dljob.control.recording.composing import compose
from dljob.control.recording.recorder import Recorder, Stages
from dljob.control.situation.ports import Entry, PodKey
from dljob.control.situation.scene import Scene
from dljob.control.situation.status import Status
from dljob.core.model import JobId, NodeName, Phase, Placement
from dljob.core.recording.record import (
    Decided,
    Ended,
    Gpu,
    Happened,
    Header,
    Source,
    Stage,
    Submitted,
    decode_line,
)
from dljob.store.rows import RecordRow
from dljob.store.tables import GpuRow
from dljob_wire.messages import Change, Saving, State
from dljob_wire.messages import Phase as SideCarPhase
from tests.builders import make_job, sum_gpu_seconds

JOB, NODE = JobId("job"), NodeName("n0")
ONE, TWO = Placement.of({NODE: (0,)}), Placement.of({NODE: (0, 1)})
KEY = PodKey(JOB, NODE)
CHANGE = Change(
    5, saving=Saving.CONFIRMED, checkpoint_seconds=3.0, stop_seconds=2.0, start_seconds=1.0
)


def says(phase: SideCarPhase, generation: int, change: Change | None = None) -> State:
    return State("incarnation", 1, phase, released=False, held_generation=generation, change=change)


def scene(now: float, status: Status | None = None) -> Scene:
    job = make_job(JOB, options=(1, 2))
    entries = {JOB: Entry(job, 0, status)} if status is not None else {}
    return Scene(now=now, epoch=1, entries=entries, job_pods={}, nodes={})


def test_missed_phases_follow_from_their_durations():
    stages = Stages()
    assert [*stages.hear(KEY, says(SideCarPhase.RUNNING, 3), 100.0)] == []
    assert [*stages.hear(KEY, says(SideCarPhase.RUNNING, 3), 150.0)] == []
    assert [*stages.hear(KEY, says(SideCarPhase.RUNNING, 5, CHANGE), 200.0)] == [
        (Stage.SAVING, 194.0),
        (Stage.SAVED, 197.0),
        (Stage.STOPPED, 199.0),
        (Stage.STARTED, 199.0),
    ]


def test_each_phase_is_recorded_once():
    stages = Stages()
    heard = [
        (SideCarPhase.RUNNING, 3, 1.0),
        (SideCarPhase.CHECKPOINTING, 3, 2.0),
        (SideCarPhase.STOPPING, 3, 4.0),
        (SideCarPhase.STOPPED, 3, 5.0),
        (SideCarPhase.STARTING, 5, 8.0),
        (SideCarPhase.STARTING, 5, 8.5),
        (SideCarPhase.RUNNING, 5, 9.0),
    ]
    found = [each for phase, held, at in heard for each in stages.hear(KEY, says(phase, held), at)]
    assert found == [
        (Stage.SAVING, 2.0),
        (Stage.SAVED, 4.0),
        (Stage.STOPPED, 5.0),
        (Stage.STARTED, 8.0),
    ]


def test_live_change_is_a_pause():
    stages, change = Stages(), Change(generation=5, live=True, pause_seconds=0.25)
    heard = [
        says(SideCarPhase.RUNNING, 3),
        says(SideCarPhase.CHANGING, 3),
        says(SideCarPhase.RUNNING, 5, change),
        says(SideCarPhase.RUNNING, 5, change),
    ]
    found = [each for at, state in enumerate(heard) for each in stages.hear(KEY, state, at)]
    assert found == [(Stage.PAUSED, 1.75)]


def test_restarted_controller_records_nothing_twice():
    begun = Status(submitted_at=10.0).decided(TWO, now=20.0)
    # Counted meanwhile: the job's use before its GPUs were decided stays the same.
    counted = replace(begun, service=20.0, counted_at=30.0, phase=Phase.RUNNING)
    first = Recorder().update(scene(21.0, begun))
    again = Recorder().update(scene(31.0, counted))
    assert {row.id: row for row in first} == {row.id: row for row in again}

    # Only changes are recorded, and an end once.
    recorder = Recorder()
    recorder.update(there := scene(31.0, counted))
    assert recorder.update(there) == []
    done = replace(
        counted.decided(None, now=50.0), phase=Phase.COMPLETED, finished_at=50.0, reshapes=2
    )
    rows = recorder.update(scene(50.0, done))
    assert recorder.update(scene(60.0, replace(done, message="it ended"))) == []
    assert recorder.update(scene(70.0)) == []
    lines = [decode_line(row.line) for row in (*first, *rows)]
    ends = [line for line in lines if isinstance(line, Ended)]
    assert ends == [Ended(at=50.0, job=JOB, outcome="Completed", gpu_seconds=60.0, reshapes=2)]


def test_cancelled_job_ends_and_its_namesake_is_another():
    recorder = Recorder()
    rows = recorder.update(scene(20.0, Status(submitted_at=10.0).decided(ONE, now=20.0)))
    rows += recorder.update(scene(30.0))
    rows += recorder.update(scene(40.0, Status(submitted_at=35.0)))
    lines = [decode_line(row.line) for row in rows]
    assert [line.outcome for line in lines if isinstance(line, Ended)] == ["Removed"]
    assert [line.at for line in lines if isinstance(line, Submitted)] == [10.0, 35.0]


def test_gpu_outages_are_recorded():
    recorder = Recorder()
    well = GpuRow(node=NODE, gpu=0, gpu_type="V100")
    found = [
        *recorder.look_at_gpus([well], 1.0),
        *recorder.look_at_gpus([well], 2.0),
        *recorder.look_at_gpus([replace(well, reason="ECC errors")], 3.0),
        *recorder.look_at_gpus([], 4.0),
        *recorder.look_at_gpus([well], 5.0),
    ]
    told = [decode_line(row.line) for row in found]
    assert all(isinstance(line, Gpu) and line.gpu_type == "V100" for line in told)
    assert [(line.at, line.in_service, line.reason) for line in told if isinstance(line, Gpu)] == [
        (1.0, True, ""),
        (3.0, False, "ECC errors"),
        (4.0, False, "its node is missing"),
        (5.0, True, ""),
    ]


def test_record_of_a_former_version_follows_from_its_history():
    lines: tuple[Decided | Happened, ...] = (
        Decided(job=JOB, at=10.0, step="start", new=ONE, generation=1),
        Decided(job=JOB, at=30.0, step="reshape", old=ONE, new=TWO, generation=2),
        Decided(job=JOB, at=60.0, step="stop", old=TWO, generation=3),
        Happened(job=JOB, at=61.0, name="Crashed", message="exit code 1", warning=True),
    )
    rows = [RecordRow.of(line, str(place)) for place, line in enumerate(lines)]
    rows.append(RecordRow(id="given/x", at=1.0, kind="given", line='{"kind":"given"'))
    record = compose(rows, (), header=Header(source=Source.MACHINE, until=100.0))
    assert sum_gpu_seconds(record) == {JOB: pytest.approx(20.0 + 60.0)}
    assert record.header.missing == ("1 rows of the store cannot be read",)
