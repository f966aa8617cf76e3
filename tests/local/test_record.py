"""``dljob record`` of a real ``dljob up``: the same GPU-seconds as its jobs report, over a restart of it too."""

import signal

import pytest

from addons.web.tests.reading import embedded, gpu_seconds
from dljob.core.recording.record import Decided, Ended, Phase, Record, Stage, Submitted, decode
from tests.builders import sum_gpu_seconds
from tests.ctl.traces import slice_seconds
from tests.local.ups import going, replay

JOBS = ("long", "other")


@pytest.mark.processes
def test_the_record_has_the_gpu_seconds_and_the_phases_that_there_were(root):
    state = root / "state"
    options = ("--virtual-gpus", 2, "--policy", "max-min")
    spec = {"gpus": {"options": [1, 2]}}
    with going(state, *options) as up:
        # Long enough, at 37 steps a second and GPU, that both still train when the controller ends.
        up.submit(replay("long", root, iterations=1200, faster=20.0, **spec))
        up.until_phase("long", "Running")
        up.submit(replay("other", root, iterations=500, faster=20.0, **spec))
        # The controller ends when the change is over: the record has no phases that no controller
        # saw.
        up.until(lambda: ("reshape", True) in changes(up, "long"))
        up.until_phase("other", "Running")
        assert up.end(signal.SIGTERM) == 0
    with going(state, *options) as up:
        for name in JOBS:
            up.until_phase(name, "Completed")
        reported = {
            name: up.backend.get_job(name)["status"]["progress"]["gpuSeconds"] for name in JOBS
        }
        up.until(lambda: len(ends(up.backend.read_record(0.0))) == len(JOBS))
        file, trace, page = (root / f"record.{each}" for each in ("jsonl", "pftrace", "html"))
        assert up("record", "-o", file).status == 0
        assert up("record", "--since", "1h", "-o", trace).status == 0
        assert up("record", "-o", page).status == 0
        assert up.end() == 0

    with file.open(encoding="utf-8") as lines:
        record = decode(lines, file.name)
    assert record.header.missing == ()
    assert sum_gpu_seconds(record) == pytest.approx(reported, abs=0.01)
    assert slice_seconds(trace.read_bytes()) == pytest.approx(reported, abs=0.01)
    data = embedded(page.read_text(encoding="utf-8"))
    assert gpu_seconds(data) == pytest.approx(reported, abs=0.1)
    assert {line.job for line in record.lines if isinstance(line, Submitted)} == set(JOBS)
    assert {(end.job, end.outcome) for end in ends(record)} == {(job, "Completed") for job in JOBS}
    assert {end.job: end.gpu_seconds for end in ends(record)} == pytest.approx(reported, abs=0.01)
    hold_of_changes(record)


def changes(up, name):
    """Return the kinds of the decisions about a job, and whether the cost of each is known."""
    return [(entry["kind"], "costSeconds" in entry) for entry in up.backend.list_history(name, 100)]


def ends(record: Record):
    return [line for line in record.lines if isinstance(line, Ended)]


def hold_of_changes(record: Record):
    """A job that makes room names the other job and its expectation, and goes through all phases in order."""
    made_room = next(
        line
        for line in record.lines
        if isinstance(line, Decided) and line.job == "long" and line.for_job == "other"
    )
    assert made_room.sentence
    assert made_room.expected is not None
    reached = {
        line.phase: line.at
        for line in record.lines
        if isinstance(line, Phase)
        and line.job == "long"
        and line.generation == made_room.generation
    }
    restarted = [stage for stage in Stage if stage is not Stage.PAUSED]
    assert reached.keys() == set(restarted)
    assert [reached[stage] for stage in restarted] == sorted(reached.values())
