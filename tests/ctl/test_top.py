"""The screen of ``dljob top``, in windows of every size."""

import contextlib
import fcntl
import os
import pty
import re
import select
import shutil
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlcore.model import CauseCode
from dlctl.output.frames import Frame, Sight, Window
from dlctl.output.gpu_map import Signs
from dlctl.output.jobviews import JobView
from tests.ctl.running import LONGEST_S
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
    sight = Sight(ABOUT, jobs, nodes, NOW, problem)
    return [
        line.plain for line in Frame(sight, signs, window=Window(width, height, skipped)).lines()
    ]


BUSY = [
    view("waits", message="waits: needs 4 GPUs"),
    view("done", "Completed", iteration=10, document={"status": {"phase": "Completed"}}),
    view("runs", "Running", gpus=2, fraction=0.5, speed=2.0, eta=250.0, reshapes=3),
]


def test_gpus_are_a_map_of_who_has_them():
    lines = draw(BUSY, [node("n1", "runs", "runs", ".", "x"), node("n2", "waits?", ".")])
    # Letters in the order in which the jobs came.
    assert lines[1] == "n1  b b · ×   n2  a ·"
    assert "6 GPUs: 2 in use, 2 free, 1 unavailable, 1 reserved" in lines[0]
    assert "3 jobs: 1 running, 1 queued, 1 completed" in lines[0]


def test_in_a_narrow_window_the_time_has_no_line_of_its_own():
    nodes = [node("n1", "runs", "runs", ".", "x")]
    first, second = draw(BUSY, nodes, 80)[:2]
    assert re.match(r"dljob top .* \d\d:\d\d:\d\d  4 GPUs", first)
    assert second == "3 jobs: 1 running, 1 queued, 1 completed"


def test_jobs_are_shown_with_how_far_they_are_those_that_train_first():
    header, runs, waits, done = draw(BUSY, [node("n1", ".")])[3:]
    assert header.split() == [
        *("NAME", "PHASE", "GPUS", "PROGRESS", "SPEED", "ETA", "RESHAPES", "AGE", "REASON"),
    ]
    assert runs.split() == [
        *("b", "runs", "Running", "2", "██████░░░░░░", "50%", "2", "it/s", "4m10s", "3", "90s"),
    ]
    assert waits.endswith("waits: needs 4 GPUs")
    assert done.split()[:4] == ["done", "Completed", "0", "████████████"]


def test_the_bar_of_a_job_that_ended_early_is_as_long_as_its_progress():
    ended = {"type": "Finished", "reason": "EndedEarly"}
    status = {"phase": "Completed", "conditions": [ended], "progress": {"fraction": 0.5}}
    early = view("early", "Completed", iteration=5, fraction=0.5, document={"status": status})
    (line,) = [line for line in draw([early], [node("n1", ".")]) if "early" in line]
    assert "██████░░░░░░ 50%" in line


def test_what_there_is_no_room_for_is_told():
    jobs = [view(f"job-{number}") for number in range(30)]
    lines = draw(jobs, [node("n1", "."), node("n2", ".")], width=50, height=12, skipped=3)
    assert len(lines) <= 12
    assert max(map(len, lines)) <= 50
    shown = sum("job-" in line for line in lines)
    assert shown >= 3
    assert lines[-1].startswith(f"3 more above; {30 - 3 - shown} more below; no room for AGE, RES")


def test_more_nodes_than_there_is_room_for_are_counted():
    nodes = [node(f"node-{number:03}", *"........") for number in range(100)]
    lines = draw(BUSY, nodes, width=60, height=20)
    assert len(lines) <= 20
    (told,) = [line for line in lines if "more rows of GPUs" in line]
    shown = sum(line.count("node-") for line in lines)
    hidden = int(told.split()[1])
    # Two nodes fit on a line.
    assert shown + 2 * hidden >= 100


def test_a_node_that_is_wider_than_the_window_goes_on_below():
    lines = draw([], [node("n1", *"." * 60)], width=40)
    assert sum(line.count("·") for line in lines) == 60


def test_what_went_wrong_is_shown_above_all():
    assert "gone; tries again" in draw(BUSY, [], problem="gone; tries again")[1:3]


def test_a_job_keeps_its_letter_while_others_come_and_go():
    signs = Signs()
    signs.learn([view("a"), view("b")])
    assert signs.show("b").plain == "b"
    signs.learn([view("b"), view("c"), view("a", "Completed")])
    assert (signs.show("b").plain, signs.show("c").plain) == ("b", "a")
    assert signs.show("unheard-of").plain == "?"
    signs.learn([view(f"job-{number}") for number in range(100)])
    assert signs.show("job-99").plain == "?"


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
def test_whatever_there_is_and_whatever_the_window_the_picture_fits(
    jobs, sizes, width, height, skipped
):
    jobs = [replace(job, name=f"{job.name}{number}") for number, job in enumerate(jobs)]
    nodes = [node(f"n{number}", *"." * size) for number, size in enumerate(sizes)]
    signs = Signs()
    signs.learn(jobs)
    frame = Frame(Sight(ABOUT, jobs, nodes, NOW), signs, window=Window(width, height, skipped))
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


def test_one_picture_is_printed_for_whoever_reads_it(busy):
    result = busy("top", "--once")
    assert (result.status, result.stderr) == (0, "")
    assert "n1  a a · ·" in result.stdout.splitlines()
    assert "\x1b" not in result.stdout
    assert result.stdout.rstrip().endswith("waits: needs 4 GPUs")


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


class Screen:
    """A terminal of its own, and ``dljob top`` on it."""

    def __init__(self, root, columns, lines):
        self._leader, follower = pty.openpty()
        fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        script = "from dlctl.main import main; main()"
        self.process = subprocess.Popen(
            [sys.executable, "-c", script, "top", "--interval", "0.1", "--state", str(root)],
            stdin=follower,
            stdout=follower,
            stderr=follower,
            start_new_session=True,
            env={
                **{
                    k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "COLUMNS", "LINES")
                },
                "PYTHONPATH": os.pathsep.join(sys.path),
                "TERM": "xterm-256color",
            },
        )
        os.close(follower)
        self.seen = ""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        os.close(self._leader)

    def until(self, text):
        """Read on until this was shown."""
        self.seen, old = "", self.seen
        end = time.monotonic() + LONGEST_S
        while text not in self.seen:
            assert time.monotonic() < end, f"{text!r} is not shown after {old!r}: {self.seen!r}"
            if select.select([self._leader], [], [], 1.0)[0]:
                self.seen += os.read(self._leader, 65536).decode(errors="replace")

    def press(self, keys):
        os.write(self._leader, keys)

    def end(self):
        """Read all that it prints until its end; return its exit status."""
        timer = threading.Timer(LONGEST_S, self.process.kill)
        timer.start()
        # A program that has ended has closed the terminal, which is an error of input and output.
        with contextlib.suppress(OSError):
            while block := os.read(self._leader, 65536):
                self.seen += block.decode(errors="replace")
        timer.cancel()
        return self.process.wait()


def test_the_screen_lives_scrolls_survives_its_controller_and_is_given_back(busy):
    names = [f"job-{number:02}" for number in range(20)]
    busy.submit(*names)
    with Screen(busy.up.root, 100, 14) as screen:
        screen.until("q quits")
        assert "\x1b[?1049h" in screen.seen
        busy.do("record", "runs", iteration=750)
        screen.until("75%")
        screen.press(b"jj\x1b[B")
        screen.until("3 more above")
        screen.press(b"G")
        screen.until("job-19")
        busy.up.stop()
        screen.until("no dljob up answers at")
        screen.press(b"q")
        assert screen.end() == 0
        # The terminal shows the former screen and the cursor again.
        assert "\x1b[?1049l" in screen.seen
        assert "\x1b[?25h" in screen.seen


def test_the_screen_is_given_back_at_ctrl_c(busy):
    with Screen(busy.up.root, 100, 14) as screen:
        screen.until("q quits")
        screen.process.send_signal(signal.SIGINT)
        assert screen.end() == 130
        assert "\x1b[?1049l" in screen.seen
        assert "Traceback" not in screen.seen


@pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed")
def test_it_looks_right_in_tmux(busy, tmp_path):
    script = f"from dlctl.main import run; run(['top', '--state', {str(busy.up.root)!r}])"
    tmux = ["tmux", "-S", str(busy.up.root / "tmux"), "-f", "/dev/null"]
    command = [
        *tmux,
        *("new-session", "-d", "-x", "90", "-y", "16"),
        f'PYTHONPATH={os.pathsep.join(sys.path)} {sys.executable} -c "{script}"',
    ]
    subprocess.run(command, check=True, timeout=LONGEST_S)
    try:
        end = time.monotonic() + LONGEST_S
        shown, row = "", "a  runs   Running  2     ██████░░░░░░ 50%"
        while not all(text in shown for text in ("q quits", row, "\nn1  a a · ·")):
            assert time.monotonic() < end, shown
            shown = subprocess.run(
                [*tmux, "capture-pane", "-p"], capture_output=True, text=True, check=True
            ).stdout
    finally:
        subprocess.run([*tmux, "kill-server"], check=False, timeout=LONGEST_S)
