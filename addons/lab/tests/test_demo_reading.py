"""The result of a demonstration contains exactly the facts of its event log."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dljob.core.model import JobId
from dljob.sim.results.records import Happening
from dljob_lab.demonstrating.closing import is_in_papers_order, read_result
from dljob_lab.demonstrating.journal import Line
from dljob_lab.demonstrating.reading import (
    Clock,
    read_interruptions,
    read_record,
    read_speeds,
    read_stints,
)
from dljob_lab.demonstrating.script import Act, Script
from dljob_lab.reproducing.sidecar.case import APPROACHES, PAPER, read_times, sum_up

APPROACH = "sidecar"
JOB = JobId("job-1")


class Log:
    """Writes the log of a job as a controller would have heard of it."""

    def __init__(self, job: str = JOB, approach: str = APPROACH) -> None:
        self.lines: list[Line] = []
        self._job, self._approach = job, approach
        self._start = 1

    def submitted(self, at: float) -> None:
        self.lines.append(
            {"at": at, "approach": self._approach, "job": self._job, "what": "submitted"}
        )

    def state(self, at: float, phase: str, **facts) -> None:
        line = {"gpus": [], "iteration": 0, "begun": False, "idle": 0.0, "speed": 0.0, **facts}
        self.lines.append(
            {
                "at": at,
                "approach": self._approach,
                "job": self._job,
                "what": "state",
                "phase": phase,
                "start": self._start,
                **line,
            }
        )

    def train(
        self, runs_at: float, begins_at: float, until: float, *, gpus: int, speed: float, found: int
    ) -> int:
        """Train; it is heard every 0.7 s. Returns how far it came."""
        self._start += 2
        held = [str(gpu) for gpu in range(gpus)]
        self.state(runs_at, "Running", gpus=held, iteration=found)
        at = runs_at
        while (at := at + 0.7) < until:
            done = max(0, math.floor((at - begins_at) * speed))
            idle = at - begins_at - done / speed if done else at - runs_at
            facts = {"iteration": found + done, "begun": done > 0, "idle": idle, "speed": speed}
            self.state(at, "Running", gpus=held, **facts)
        return found + math.floor((until - begins_at) * speed)


def reshaped(speed: float, begins_after: float) -> tuple[Log, int]:
    """Four GPUs for 20 s, two for 30 s; both starts take ``begins_after`` seconds."""
    log = Log()
    log.submitted(100.0)
    done = log.train(102.0, 102.0 + begins_after, 122.0, gpus=4, speed=speed, found=0)
    log.state(122.0, "Checkpointing", gpus=["0"], iteration=done)
    log.state(122.2, "Stopping", gpus=["0"], iteration=done)
    done = log.train(122.3, 122.3 + begins_after, 152.3, gpus=2, speed=speed / 2, found=done)
    log.state(152.6, "Exited", iteration=done)
    return log, done


@given(st.floats(2.0, 40.0), st.floats(0.0, 5.0))
def test_starts_stops_and_speeds_are_read(speed, begins_after):
    log, _ = reshaped(speed, begins_after)
    first, second = read_stints(log.lines, APPROACH, job=JOB)
    assert (first.gpus, second.gpus) == (4, 2)
    assert first.trains_at == pytest.approx(102.0 + begins_after, abs=1e-2)
    assert second.trains_at == pytest.approx(122.3 + begins_after, abs=1e-2)
    assert first.halts_at == 122.0
    assert second.ended_at == pytest.approx(152.3, abs=2.0 / speed + 1e-6)
    assert first.speed == pytest.approx(speed)
    assert read_interruptions([first, second]) == [pytest.approx(0.3)]


def test_the_log_becomes_a_record_in_the_time_that_is_shown():
    log, _ = reshaped(10.0, 1.0)
    record = read_record(log.lines, APPROACH, jobs=[JOB], factor=3.0)
    told = [(entry.what, entry.gpus, round(entry.time, 1)) for entry in record.log]
    assert told == [
        (Happening.SUBMITTED, 0, 0.0),
        (Happening.TRAINS, 4, 9.0),
        (Happening.HALTS, 0, 66.0),
        (Happening.TRAINS, 2, 69.9),
        (Happening.COMPLETED, 0, 156.9),
    ]


def test_speeds_are_scaled_to_the_shown_time():
    log, _ = reshaped(10.0, 1.0)
    times, speeds = read_speeds(read_stints(log.lines, APPROACH, job=JOB), Clock(100.0, factor=2.0))
    assert times == sorted(times)
    at_4 = [speed for time, speed in zip(times, speeds, strict=True) if 6 < time < 40]
    at_2 = [speed for time, speed in zip(times, speeds, strict=True) if 50 < time < 100]
    assert at_4 == pytest.approx([5.0] * len(at_4), rel=0.01)
    assert at_2 == pytest.approx([2.5] * len(at_2), rel=0.01)
    assert speeds[-1] == 0.0


def test_silent_new_pod_continues_the_progress():
    log = Log()
    log.submitted(0.0)
    done = log.train(1.0, 2.0, 12.0, gpus=2, speed=10.0, found=0)
    log.state(12.0, "Stopping", iteration=done)
    log._start += 2
    log.state(20.0, "Running", gpus=["0"] * 4, iteration=0)
    log.state(22.0, "Running", gpus=["0"] * 4, iteration=done + 5, begun=True, speed=10.0)
    log.state(23.0, "Running", gpus=["0"] * 4, iteration=done + 15, begun=True, speed=10.0)
    assert read_stints(log.lines, APPROACH, job=JOB)[1].trains_at == pytest.approx(21.5)


def two_jobs(approach: str) -> tuple[list[Line], Script]:
    """The two jobs of the case study, done when the paper's were."""
    times = PAPER[approach]
    lines: list[Line] = []
    for job, at, done_at in (
        ("job-1", 0.0, times["job-1-done"]),
        ("job-2", 180.0, times["job-2-done"]),
    ):
        log = Log(job, approach)
        log.submitted(at)
        done = log.train(at + 1, at + 2, done_at, gpus=4, speed=2.0, found=0)
        log.state(done_at + 0.5, "Exited", iteration=done)
        lines += log.lines
    acts = tuple(Act(JobId(job), 0.0, {}, 4) for job in ("job-1", "job-2"))
    return sorted(lines, key=lambda line: line["at"]), Script(acts=acts)


def test_makespan_and_completion_times_are_summed_up_as_in_the_paper():
    results = []
    for approach in APPROACHES:
        lines, script = two_jobs(approach.name)
        result = read_result(lines, approach, script=script)
        paper = sum_up(PAPER[approach.name])
        assert result.makespan_s == pytest.approx(paper.makespan_s, abs=1.0)
        assert result.avg_jct_s == pytest.approx(paper.avg_jct_s, abs=1.0)
        results.append(result)
    assert is_in_papers_order(results) == {"makespan_s": True, "avg_jct_s": True}
    # If SideCar were the slowest, the comparison would report it.
    default, termination, sidecar = results
    slow = two_jobs("default")[0]
    for line in slow:
        line["approach"] = "sidecar"
    late = read_result(slow, APPROACHES[2], script=two_jobs("sidecar")[1])
    assert is_in_papers_order([default, termination, late])["makespan_s"] is False
    assert sidecar.approach == "sidecar"


def test_missing_event_has_no_number():
    lines, script = two_jobs("sidecar")
    result = read_result(lines, APPROACHES[2], script=script)
    assert math.isnan(result.times["job-1-trains-on-4"])
    assert math.isnan(
        read_times(read_record(lines, "sidecar", jobs=script.jobs, factor=1.0))["reshape-up"]
    )
