"""``dljob demo`` as its users see it: real controllers, SideCars and processes, in little time."""

import asyncio
import io
import json
import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from dljob.core.profiles import JobType, Profile, Speed
from dljob_lab.demonstrating import performing, viewing
from dljob_lab.demonstrating.examples import load_example
from dljob_lab.demonstrating.journal import Journal
from dljob_lab.demonstrating.performing import (
    Hall,
    choose_iterations,
    find_machine,
    find_real_machine,
    gain_of,
)
from dljob_lab.reproducing.sidecar.case import APPROACHES
from dljob_lab.verbs import demo
from dljob_wire.messages import Shape
from tests.ctl.running import Result, run_apart
from tests.ctl.terminals import Terminal

FASTER = 20


def living(word: Path) -> list[str]:
    """The command lines of all processes in which this folder stands."""
    found = []
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            try:
                command = os.fsdecode((process / "cmdline").read_bytes().replace(b"\0", b" "))
            except OSError:
                continue
            if str(word) in command:
                found.append(command)
    return found


def perform(folder: Path) -> Result:
    """Give the demonstration, of which nothing but its result is left."""
    (folder / "tmp").mkdir(parents=True)
    result = run_apart(
        "demo",
        f"--faster={FASTER}",
        "--changes=4",
        f"--out={folder / 'out'}",
        "--output=json",
        cwd=folder,
        TMPDIR=str(folder / "tmp"),
    )
    assert result.status == 0, result.stderr
    assert living(folder / "tmp") == []
    assert list((folder / "tmp").iterdir()) == []
    return result


def makespans_and_completion_times_come_in_the_papers_order(result: Result) -> None:
    by_name = {each["approach"]: each for each in result.data["approaches"]}
    makespans = [by_name[name]["makespan_s"] for name in ("sidecar", "termination", "default")]
    assert makespans == sorted(makespans)
    times = [by_name[name]["avg_jct_s"] for name in ("sidecar", "default", "termination")]
    assert times == sorted(times)
    assert result.data["papers_order"] == {"makespan_s": True, "avg_jct_s": True}


def every_approach_did_what_it_does(result: Result) -> None:
    gpus = {
        each["approach"]: [job["gpus"] for job in each["jobs"]]
        for each in result.data["approaches"]
    }
    assert gpus["default"] == [[4], [2]]
    assert gpus["termination"] == [[4, 2, 4], [2]]
    assert gpus["sidecar"][0][:2] == [4, 2]


def each_figure_of_the_paper_has_one_of_the_run_beside_it(result: Result) -> None:
    assert result.data["factor"] == FASTER
    assert len(result.data["modelled"]) == 3
    for approach in result.data["approaches"]:
        assert all(time["paper_s"] > 0 for time in approach["times"])
        done = [time["s"] for time in approach["times"] if time["event"].endswith("done")]
        assert all(time is not None and time > 0 for time in done)


def changes_in_place_are_measured_beside_recreations(result: Result) -> None:
    in_place, recreate = result.data["measured_reshapes"]
    assert (in_place["mechanism"], recreate["mechanism"]) == ("in-place", "recreate")
    assert in_place["changes"] == recreate["changes"] == 4
    for each in (in_place, recreate):
        assert 0 < each["p50_s"] <= each["p99_s"] <= each["max_s"]
    # A change in place leaves out steps of a recreation, so it cannot take longer.
    assert in_place["p50_s"] < recreate["p50_s"]


def pictures_and_the_event_log_are_where_it_says(result: Result) -> None:
    for path in result.data["pictures"]:
        assert Path(path).read_bytes().startswith(b"\x89PNG")
    lines = Path(result.data["events"]).read_text().splitlines()
    whats = {json.loads(line)["what"] for line in lines}
    assert whats == {"submitted", "decided", "state"}


def lines_tell_what_happens_where_there_is_no_terminal(result: Result) -> None:
    assert "modelled, that is waited out" in result.stderr
    assert "job-1  goes from 4 to 2 GPUs on node: it makes room for job-2" in result.stderr


def controllers_have_nothing_to_warn_of(result: Result) -> None:
    # Pods take as long as they are made to; that they do is no fault.
    log = Path(result.data["events"]).with_name("demo.log").read_text()
    assert " WARNING " not in log
    assert "job-1: Running: trains on" in log
    assert "NotStarted" not in result.stderr


CHECKS = (
    makespans_and_completion_times_come_in_the_papers_order,
    every_approach_did_what_it_does,
    each_figure_of_the_paper_has_one_of_the_run_beside_it,
    changes_in_place_are_measured_beside_recreations,
    pictures_and_the_event_log_are_where_it_says,
    lines_tell_what_happens_where_there_is_no_terminal,
    controllers_have_nothing_to_warn_of,
)


@pytest.mark.processes
@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_case_study_comes_out_as_in_the_paper_and_leaves_nothing(tmp_path):
    result = perform(tmp_path / "once")
    if not all(result.data["papers_order"].values()):
        # Two averages are two seconds apart at this speed, and trainings that are stopped for as long turn them.
        result = perform(tmp_path / "again")
    # One run for all that is to be seen of it, because it takes its time.
    for check in CHECKS:
        check(result)


CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
"""The sequences that move the cursor, erase and colour."""


@pytest.mark.processes
@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_picture_is_whole_in_a_terminal(tmp_path):
    with Terminal(
        *("demo", "--faster=60", "--changes=2", f"--out={tmp_path}"),
        cwd=tmp_path,
        columns=80,
        rows=40,
        TERM="xterm",
    ) as terminal:
        assert terminal.status(limit_s=1500.0) == 0, terminal.seen
    # From the first frame to the sentence after the last one there is nothing but the picture.
    plain = CONTROL.sub("", terminal.seen)
    moving = plain[plain.index("╭─ default") : plain.index("measures what a change")]
    lines = [line for line in re.split(r"[\r\n]+", moving) if line]
    assert [line for line in lines if line[0] not in "╭│╰"] == []
    assert {len(line) for line in lines} == {80}
    # The table shows which job has which GPU without colours, too.
    assert any("0 job-1" in line and "2 job-2" in line for line in lines)
    assert re.search(r"\x1b\[[0-9;]*4[0-9]m|\x1b\[[0-9;]*48;", terminal.seen)


def test_animation_needs_room_and_a_terminal():
    for rows, kind, environment, is_drawn in (
        (24, "xterm", {}, True),
        (12, "xterm", {}, False),
        (24, "xterm", {"CI": "true"}, False),
        (24, "dumb", {}, False),
    ):
        console = Console(force_terminal=True, width=80, height=rows, _environ={"TERM": kind})
        assert viewing.is_worth_drawing(console, 15, environment=environment) is is_drawn
    assert not viewing.is_worth_drawing(Console(file=io.StringIO(), height=40), 15, environment={})


@pytest.mark.processes
@pytest.mark.parametrize(
    "signum", [pytest.param(signal.SIGINT, marks=pytest.mark.story), signal.SIGTERM]
)
def test_interrupt_leaves_nothing_behind(tmp_path, monkeypatch, signum):
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    command = [sys.executable, "-c", "from dljob.cli.main import main; main()"]
    words = [*command, "demo", "--faster=60", f"--out={tmp_path / 'out'}"]
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as demo:
        timer = threading.Timer(300.0, demo.kill)
        timer.start()
        assert demo.stderr is not None
        for line in demo.stderr:
            if "runs on 4 GPUs" in line:
                assert any("sidecar" in each for each in living(tmp_path / "tmp"))
                demo.send_signal(signum)
                break
        rest = demo.stderr.read()
        timer.cancel()
    assert demo.returncode == 130, rest
    assert "ends the processes that it has started" in rest
    assert living(tmp_path / "tmp") == []
    assert list((tmp_path / "tmp").iterdir()) == []


def test_an_approach_that_cannot_be_ended_leaves_none_of_the_others(tmp_path, monkeypatch):
    ended: list[str] = []

    class Ending:
        def __init__(self, approach, *_, **__):
            self.name = approach.name

        async def end(self):
            if self.name == APPROACHES[0].name:
                raise OSError(28, "No space left on device")
            # Each later than the error.
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            ended.append(self.name)

    async def demonstrate() -> None:
        nothing: Any = None
        hall = Hall(tmp_path, find_machine(), nothing)
        async with performing.build_stages(hall, lambda _: nothing):
            pass

    monkeypatch.setattr(performing, "Stage", Ending)
    with pytest.raises(OSError, match="No space left"):
        asyncio.run(demonstrate())
    assert ended == [approach.name for approach in APPROACHES[1:]]


def test_unwritable_folder_is_refused_first(tmp_path, dljob):
    (tmp_path / "file").touch()
    result = dljob("demo", "--out", tmp_path / "file" / "out")
    assert result.status == 1
    assert "cannot be written" in result.stderr


def test_without_four_gpus_they_are_virtual_and_for_real_training_no_more_than_cores():
    machine = find_machine()
    assert len(machine.node.gpus) == 4
    assert machine.virtual_gpus or all(gpu.uuid for gpu in machine.node.gpus)
    for cores, gpus in ((1, 2), (2, 2), (4, 4), (64, 4)):
        machine = find_real_machine(cores)
        assert len(machine.node.gpus) == (gpus if machine.virtual_gpus else 4)


def measured(one: float, two: float) -> Profile:
    kind = JobType("digits")
    return Profile(kind, {Shape(1, 1, ""): Speed(one), Shape(2, 1, ""): Speed(two)})


def test_whether_there_is_anything_to_gain_is_said_before_it_takes_minutes(capsys):
    for two, told in (
        (18.0, "2 GPUs train 1.80 times as fast as 1, so giving them to the right job"),
        (10.5, "this machine cannot show an advantage now: 2 GPUs train 1.05 times as fast as 1"),
    ):
        demo._report_gain(gain_of(measured(10.0, two), 2), 2)
        assert told in " ".join(capsys.readouterr().err.split())
    iterations = choose_iterations(measured(10.0, 18.0), 2)
    # Much longer than a change takes.
    assert iterations == {"job-1": 18 * 60, "job-2": 10 * 40}


def test_examples_ship_with_their_trainings():
    for name in ("digits", "replay"):
        example = load_example(name)
        assert example.document["metadata"]["name"] == name
        assert Path(example.command[-1]).is_file()


def test_a_log_is_whole_up_to_the_line_that_was_written_last(tmp_path):
    journal = Journal(tmp_path / "log", clock=lambda: 7.0)
    journal.note_submission("sidecar", "job-1")  # type: ignore[arg-type]
    (line,) = (tmp_path / "log").read_text().splitlines()
    assert json.loads(line) == journal.lines[0]
    assert journal.lines[0]["at"] == 7.0
    journal.close()
