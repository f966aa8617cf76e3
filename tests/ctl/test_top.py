"""The screen of ``dljob top``, in windows of every size."""

import re
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dljob.cli.output.frames import Facts, Frame, Signs, Window
from dljob.cli.verbs.watching.get import row_of
from dljob.client.jobviews import JobView, eta_of
from dljob.core.model import CauseCode
from tests.ctl.terminals import Terminal

ABOUT = {"policy": "adaptive", "mechanism": "in-place"}
NOW = 1_000_000.0


def view(name, phase="Queued", **more):
    return JobView(name=name, phase=phase, submitted_at=NOW - 90, **more)


def node(name, *gpus):
    states = {".": ("free", None), "x": ("unavailable", None)}
    there = []
    for index, sign in enumerate(gpus):
        state, job = states.get(
            sign, ("reserved" if sign.endswith("?") else "in use", sign.rstrip("?"))
        )
        there.append({"index": index, "state": state, **({"job": job} if job else {})})
    return {"name": name, "gpuType": "", "gpus": there}


def draw(jobs, nodes, width=140, height=None, skipped=0, problem=""):
    signs = Signs()
    signs.learn(jobs)
    facts = Facts(ABOUT, jobs, nodes, NOW, problem)
    return [
        line.plain for line in Frame(facts, signs, window=Window(width, height, skipped)).lines()
    ]


BUSY = [
    view("waits", message="waits: needs 4 GPUs"),
    view("done", "Completed", iteration=10, document={"status": {"phase": "Completed"}}),
    view(
        *("runs", "Running"),
        gpus=2,
        fraction=0.5,
        speed=2.0,
        eta=250.0,
        reshapes=3,
        document={"status": {"phase": "Running", "progress": {"fraction": 0.5}}},
    ),
]


def test_gpu_map_shows_holders():
    lines = draw(BUSY, [node("n1", "runs", "runs", ".", "x"), node("n2", "waits?", ".")])
    # Letters in the order in which the jobs came.
    assert lines[1] == "n1  b b · ×   n2  a ·"
    assert "6 GPUs: 2 in use, 2 free, 1 unavailable, 1 reserved" in lines[0]
    assert "3 jobs: 1 running, 1 queued, 1 completed" in lines[0]


def test_jobs_are_shown_with_how_far_they_are_those_that_train_first():
    header, runs, waits, done = draw(BUSY, [node("n1", ".")])[3:]
    assert header.split() == [
        *("NAME", "PHASE", "GPUS", "PROGRESS", "SPEED", "ETA", "RESHAPES", "AGE", "REASON")
    ]
    assert runs.split() == [
        *("b", "runs", "Running", "2", "██████░░░░░░", "50%", "2", "it/s", "4m10s", "3", "90s")
    ]
    assert waits.endswith("waits: needs 4 GPUs")
    assert done.split()[:4] == ["done", "Completed", "0", "████████████"]


def test_an_end_that_is_a_guess_is_marked_everywhere():
    guess = view("new", "Running", eta_between=(0.0, 250.0))
    assert "~0s-4m10s" in draw([guess], [node("n1", ".")])[4]
    assert row_of(guess)[5] == row_of(guess, wide=True)[5] == "~0s-4m10s"
    assert eta_of(guess, " to ") == "~0s to 4m10s"
    assert eta_of(replace(guess, phase="Failed")) == "-"


def test_cut_lines_are_counted():
    jobs = [view(f"job-{number}") for number in range(30)]
    lines = draw(jobs, [node("n1", "."), node("n2", ".")], width=50, height=12, skipped=3)
    assert len(lines) <= 12
    assert max(map(len, lines)) <= 50
    shown = sum("job-" in line for line in lines)
    assert shown >= 3
    assert lines[-1].startswith(f"3 more above; {30 - 3 - shown} more below; no room for AGE, RES")


def test_wide_node_wraps():
    lines = draw([], [node("n1", *"." * 60)], width=40, problem="gone; tries again")
    assert sum(line.count("·") for line in lines) == 60
    assert "gone; tries again" in lines[1:3]


def test_a_job_keeps_its_letter_while_others_come_and_go():
    signs = Signs()
    signs.learn([view("a"), view("b")])
    assert signs.show("b").plain == "b"
    signs.learn([view("b"), view("c"), view("a", "Completed")])
    assert (signs.show("b").plain, signs.show("c").plain) == ("b", "a")
    assert signs.show("unheard-of").plain == "?"
    signs.learn([view(f"job-{number}") for number in range(100)])
    assert signs.show("job-99").plain == "?"


@settings(max_examples=30)
@given(
    jobs=st.lists(
        st.builds(
            view,
            st.text("abc-", min_size=1, max_size=40),
            st.sampled_from(["Running", "Queued", "Failed", "Completed", "Cancelling", "New"]),
            gpus=st.integers(0, 10_000),
            fraction=st.none() | st.floats(0, 1),
            speed=st.floats(0, 1e9),
            eta=st.none() | st.floats(0, 1e9),
            message=st.text(max_size=300),
        ),
        max_size=40,
    ),
    sizes=st.lists(st.integers(0, 70), max_size=20),
    width=st.integers(1, 200),
    height=st.integers(1, 60),
    skipped=st.integers(0, 50),
)
def test_picture_fits_any_window(jobs, sizes, width, height, skipped):
    jobs = [replace(job, name=f"{job.name}{number}") for number, job in enumerate(jobs)]
    nodes = [node(f"n{number}", *"." * size) for number, size in enumerate(sizes)]
    signs = Signs()
    signs.learn(jobs)
    frame = Frame(Facts(ABOUT, jobs, nodes, NOW), signs, window=Window(width, height, skipped))
    lines = frame.lines()
    assert all(line.cell_len <= width for line in lines)
    if width >= 60 and height >= 12:
        assert len(lines) <= height
    assert frame.most_skipped <= len(jobs)


# --- the whole of it ----------------------------------------------------------------------


@pytest.fixture
def busy(played):
    played.submit("runs")
    played.submit("waits", gpus={"options": [4]})
    played.do("give", "runs", {"n1": (0, 1)}, speed=2.0, iteration=500, iterations_total=1000.0)
    played.do("take", "waits", CauseCode.NO_ROOM, message="waits: needs 4 GPUs")
    return played


def test_one_picture_is_printed_without_a_terminal(busy):
    result = busy("top", "--once")
    assert (result.status, result.stderr) == (0, "")
    assert "n1  a a · ·" in result.stdout.splitlines()
    assert "\x1b" not in result.stdout
    assert result.stdout.rstrip().endswith("waits: needs 4 GPUs")


@pytest.mark.processes
def test_the_map_of_one_picture_is_in_colour_at_a_terminal(busy, tmp_path):
    options = ("top", "--once", "--state", busy.up.root)
    with Terminal(*options, cwd=tmp_path, TERM="xterm-256color", NO_COLOR="") as screen:
        assert screen.status() == 0
        assert re.search(r"n1  \x1b\[1;7;3\dma\x1b\[0m \x1b\[1;7;3\dma\x1b\[0m ", screen.seen)
        assert "\\u001b" not in screen.seen


def test_without_a_terminal_there_is_no_screen_to_fill(busy):
    result = busy("top")
    assert result.status == 2
    assert result.stderr.endswith(
        "standard output is not a terminal; use --once, or dljob get -w\n"
    )


def screen(busy, tmp_path):
    words = ("top", "--interval", "0.1", "--state", busy.up.root)
    return Terminal(*words, cwd=tmp_path, columns=100, rows=14, TERM="xterm-256color")


@pytest.mark.processes
@pytest.mark.story
def test_the_screen_lives_scrolls_survives_its_controller_and_is_given_back(busy, tmp_path):
    busy.submit(*(f"job-{number:02}" for number in range(20)))
    with screen(busy, tmp_path) as top:
        top.until("q quits")
        assert "\x1b[?1049h" in top.seen
        busy.do("record", "runs", iteration=750)
        top.until("75%")
        top.type("jj\x1b[B")
        top.until("3 more above")
        top.type("G")
        top.until("job-19")
        busy.up.stop()
        top.until("no dljob up answers at")
        top.type("q")
        assert top.status() == 0
        # The terminal shows the former screen and the cursor again.
        assert "\x1b[?1049l" in top.seen
        assert "\x1b[?25h" in top.seen


@pytest.mark.processes
def test_the_screen_is_given_back_at_ctrl_c(busy, tmp_path):
    with screen(busy, tmp_path) as top:
        top.until("q quits")
        top.type("\x03")
        assert top.status(again="\x03") == 130
        assert "\x1b[?1049l" in top.seen
        assert "Traceback" not in top.seen
