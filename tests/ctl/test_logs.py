"""The log of a job's training: whole, at its end, and as it goes on."""

import itertools
import os
import time
from types import SimpleNamespace

import pytest

from dljob.cli.verbs.watching.logs import find_node
from dljob.client.backend import Away, NotThere
from dljob.client.jobviews import JobView
from dljob.client.local import following
from dljob.client.local.local_backend import LocalBackend
from dljob.core.model import CauseCode, JobId, Phase
from dljob.local.folders import Folders
from dljob.local.pods.logtimes import Begin, LogTimes
from dljob.local.pods.rotating import LogLimits, rotate
from dljob_web.sources import MOST_BYTES, MOST_LINES, read_tail
from tests.ctl.running import Live, Result


class Logs:
    """The logs of one job, by their nodes."""

    def __init__(self, played, job):
        self.folder = played.up.root / "jobs" / job
        self.folder.mkdir(parents=True)

    def write(self, node, text):
        with (self.folder / f"{node}.log").open("a", encoding="utf-8") as file:
            file.write(text)


@pytest.fixture(autouse=True)
def _look_often(monkeypatch):
    monkeypatch.setattr(following, "LOOK_S", 0.01)
    monkeypatch.setattr(following, "ASK_S", 0.01)


@pytest.fixture
def logs(played):
    played.submit("a")
    return Logs(played, "a")


def test_a_log_is_printed_whole_or_from_its_end(played, logs):
    lines = [f"step {number}" for number in range(10_000)]
    # A last line without its end is a line.
    logs.write("n1", "\n".join(lines))
    assert played("logs", "a").stdout.splitlines() == lines
    for count in (0, 1, 2, 9_999, 10_000, 20_000):
        result = played("logs", "a", "--tail", count)
        assert result.stdout.splitlines() == lines[len(lines) - min(count, len(lines)) :]


def test_lines_of_several_nodes_bear_their_names_unless_one_is_named(played, logs):
    logs.write("n1", "one\n")
    logs.write("n2", "two\n")
    both = played("logs", "a")
    assert both.stdout == "[n1] one\n[n2] two\n"
    one = played("logs", "a", "--node", "n2")
    assert one.stdout == "two\n"
    none = played("logs", "a", "--node", "n3")
    assert (none.status, none.stderr) == (1, "dljob: a has no log of n3; nodes with one: n1, n2\n")


def test_job_without_output_says_so(played):
    played.submit("a")
    result = played("logs", "a")
    assert (result.status, result.stdout) == (0, "")
    assert result.stderr == "a has written nothing yet; -f waits for it\n"
    played.do("take", "a", CauseCode.BEHIND, phase=Phase.FAILED)
    over = played("logs", "a")
    assert over.stderr == "a has written nothing\n"


def test_since_prints_only_recent_lines(played, logs):
    times, path = played.up.stage.log_times, logs.folder / "n1.log"
    now = time.time()
    logs.write("n1", "old\nhalf")
    times.note(path, now - 600)
    logs.write("n1", " a line\nnew\n")
    times.note(path, now - 60)
    for since, wanted in (
        ("5m", "half a line\nnew\n"),
        ("30s", ""),
        ("2h", "old\nhalf a line\nnew\n"),
    ):
        result = played("logs", "a", "--since", since)
        assert (result.stdout, result.stderr) == (wanted, "")
    assert played("logs", "a", "--since", "soon").status == 2


def test_recent_lines_are_found_in_rotated_parts(tmp_path):
    path, limits = tmp_path / "n1.log", LogLimits(largest_bytes=4096)
    times = LogTimes()

    def write(text):
        with path.open("a", encoding="utf-8") as file:
            file.write(text)

    def told(at):
        begin = times.find(path, at)
        begins = {} if begin is None else {"n1": begin}
        lines = following.read_lines({"n1": path}, None, begins=begins)
        return b"".join(line.text for line in lines).decode()

    texts = []
    for number in range(3):
        write(f"{number}a\n")
        times.note(path, 10.0 * number)
        write("x" * 5000 + f"\n{number}b\n")
        assert rotate(path, limits)
        times.note_cut(path)
        texts.append("x" * 5000 + f"\n{number}b\n")
    write("end\n")
    times.note(path, 100.0)
    assert told(5.0) == f"{texts[0]}1a\n{texts[1]}2a\n{texts[2]}end\n"
    assert told(15.0) == f"{texts[1]}2a\n{texts[2]}end\n"
    assert told(25.0) == f"{texts[2]}end\n"
    assert told(100.0) == ""
    assert told(-3600.0).startswith("0a\n")
    path.unlink()
    times.forget_removed()
    assert times.find(path, 100.0) is None


def test_a_clock_that_is_set_does_not_move_the_times_of_output(tmp_path):
    path, now = tmp_path / "n1.log", SimpleNamespace(steady=1e9, wall=1e9)
    times = LogTimes(lambda: now.steady, wall=lambda: now.wall)

    def write(text):
        with path.open("a", encoding="utf-8") as file:
            file.write(text)
        os.utime(path, (now.wall, now.wall))
        size = path.stat().st_size
        return size - len(text), size

    write("before the server\n")
    now.steady, now.wall = now.steady + 100, now.wall + 100
    times.note(path, times.clock())
    for step in (7200.0, -10_800.0):
        now.steady, now.wall = now.steady + 100, now.wall + 100 + step
        before, after = write("new\n")
        times.note(path, times.clock())
        assert times.find(path, now.steady - 50) == Begin(0, before)
        assert times.find(path, now.steady) == Begin(0, after)
    assert times.find(path, 1e9 - 1) is None
    assert times.find(path, 1e9 + 1) == Begin(0, len("before the server\n"))


def test_a_log_that_was_never_looked_at_is_as_old_as_its_file(tmp_path):
    path = tmp_path / "n1.log"
    path.write_text("text\n")
    os.utime(path, (50.0, 50.0))
    assert LogTimes().find(path, 60.0) == Begin(0, 5)
    assert LogTimes().find(path, 40.0) is None


def test_a_rank_is_looked_for_where_it_is_now(played, logs):
    none = played("logs", "a", "--rank", 0)
    assert (none.status, "a has no GPUs now (Submitted)" in none.stderr) == (1, True)
    both = played("logs", "a", "--rank", 0, "--node", "n1")
    assert both.status == 2
    job = {
        "metadata": {"name": "a"},
        "spec": {"framework": "none", "template": {"spec": {"containers": []}}},
        "status": {
            "allocation": {
                "nodes": [{"name": "n1", "gpuIds": [0]}, {"name": "n2", "gpuIds": [0, 1]}]
            }
        },
    }
    view = JobView.of(job)
    assert [find_node(view, "a", rank) for rank in range(2)] == ["n1", "n2"]
    with pytest.raises(NotThere, match="a has no rank 2; it has 2 now"):
        find_node(view, "a", 2)


@pytest.fixture
def ranks(played):
    """The logs of a job with a process for each GPU, of which one node has two."""
    played.submit("a", processes="perGpu")
    logs = Logs(played, "a")
    logs.write("n1", "alone\nrank 0 | zero\nrank 1 | 1%\rrank 0 | 5%\rrank 1 | one\n")
    logs.write("n2", "rank 2 | two\nrank 10 | ten\nrank 1 | moved\n")
    return logs


def test_a_rank_of_a_job_with_a_process_for_each_gpu_shows_its_own_lines_alone(played, ranks):
    def told(*words):
        return played("logs", "a", *words).stdout

    assert told("--rank", 0) == "alone\nzero\n5%\r"
    assert told("--rank", 2) == "two\n"
    assert told("--rank", 10) == "ten\n"
    assert told("--rank", 1, "--tail", 2) == "one\n[n2] moved\n"
    assert "rank 2 | two" in told()
    missing = played("logs", "a", "--rank", 5)
    assert missing.stderr == "rank 5 of a has written nothing yet; -f waits for it\n"


def follow(played, *words):
    return Live("logs", "a", "-f", *words, "--state", played.up.root)


@pytest.mark.processes
@pytest.mark.story
def test_follow_prints_all_until_the_end(played, ranks):
    limits = LogLimits(largest_bytes=4096)
    with follow(played, "--rank", 0, "--tail", 1) as live:
        # A state of a progress bar has no line break.
        ranks.write("n2", "rank 1 | other\nrank 0 | news\n")
        assert live.line().splitlines()[-1].endswith("news")
        live.interrupt()
        # The line break comes after the ^C of a terminal.
        assert live.rest() == Result(130, "", "\n")
    with follow(played, "--node", "n1", "--tail", 1) as live:
        assert live.line().endswith("rank 1 | one\n")
        for number in range(3):
            ranks.write("n1", f"{'x' * 5000} {number}\n")
            # Not while the other one looks.
            while not rotate(ranks.folder / "n1.log", limits):
                pass
        assert [live.line()[-2:] for _ in range(3)] == ["0\n", "1\n", "2\n"]
        ranks.write("n1", "the end")
        played.do("record", "a", phase=Phase.COMPLETED)
        assert live.rest() == Result(0, "the end", "")


@pytest.mark.processes
def test_followed_log_may_move_grow_and_go(played, logs):
    logs.write("n1", "old 1\nold 2\n")
    with follow(played, "--tail", 1) as live:
        assert live.line() == "old 2\n"
        (logs.folder / "n1.log").rename(logs.folder / "n1.log.1")
        logs.write("n1", "new 1\n")
        assert live.line() == "new 1\n"
        (logs.folder / "n1.log").write_text("n 2\n", encoding="utf-8")
        assert live.line() == "n 2\n"
        logs.write("n2", "first\nsecond\n")
        assert [live.line(), live.line()] == ["[n2] first\n", "[n2] second\n"]
        played.up.do(lambda stage: stage.registry.forget(JobId("a")))
        assert live.rest() == Result(0, "", "")


def test_renamed_log_is_not_read_twice(played, logs):
    logs.write("n1", "old\n")
    path = logs.folder / "n1.log"
    looks: list[None] = []

    def find():
        looks.append(None)
        match len(looks):
            case 2:
                path.rename(logs.folder / "n1.log.1")
            case 4:
                logs.write("n1", "new\n")
        return {"n1": path}, len(looks) > 5

    assert [line.text for line in following.follow(find, None)] == [b"old\n", b"new\n"]


def test_a_log_that_has_grown_again_since_it_was_turned_over_is_read_in_order(played, logs):
    """It is no shorter than it was; the new part tells."""
    logs.write("n1", "first\n")
    path = logs.folder / "n1.log"
    looks: list[None] = []

    def find():
        if len(looks) == 1:
            for number in range(3):
                logs.write("n1", f"{'x' * 5000} {number}\n")
                assert rotate(path, LogLimits(largest_bytes=4096))
            logs.write("n1", f"{'x' * 5000} 3\n")
        looks.append(None)
        return {"n1": path}, len(looks) > 2

    told = [line.text[-3:] for line in following.follow(find, None)]
    assert told == [b"st\n", b" 0\n", b" 1\n", b" 2\n", b" 3\n"]


def test_a_controller_that_ends_does_not_end_the_following(played, logs):
    """It is the training that writes; the next controller tells when it has ended."""
    looks: list[None] = []

    def find():
        looks.append(None)
        if len(looks) == 2:
            raise Away("gone for a while")
        return {"n1": logs.folder / "n1.log"}, len(looks) > 3

    logs.write("n1", "step 1\n")
    told = [line.text for line in following.follow(find, None)]
    assert (told, len(looks)) == ([b"step 1\n"], 4)


def test_a_line_longer_than_any_memory_is_passed_on_in_pieces(tmp_path, monkeypatch):
    monkeypatch.setattr(following, "LONGEST_LINE", 1000)
    monkeypatch.setattr(following, "BLOCK", 300)
    path = tmp_path / "n1.log"
    path.write_bytes(b"x" * 5000 + b"\nshort\n")
    pieces = [line.text for line in following.read_lines({"n1": path}, None)]
    assert b"".join(pieces) == path.read_bytes()
    assert max(map(len, pieces)) <= 1300
    assert pieces[-1] == b"short\n"


def test_of_a_long_log_the_last_bytes_of_all_its_parts_are_read(tmp_path):
    path = tmp_path / "n1.log"
    older, newer = b"x" * 1_000_000 + b"\na\n", b"b\n"
    path.with_name("n1.log.1").write_bytes(older)
    path.write_bytes(newer)
    for size, told in ((2, "b\n"), (4, "a\nb\n"), (2_000_000, (older + newer).decode())):
        begins = {"n1": following.place_before_end(path, size)}
        lines = following.read_lines({"n1": path}, None, begins=begins)
        assert b"".join(line.text for line in lines).decode() == told
    assert following.place_before_end(tmp_path / "none.log", 10) == Begin(0, 0)


def test_the_page_gets_few_last_lines_and_no_control_characters(played, logs):
    backend = LocalBackend(Folders(played.up.root).socket)
    assert read_tail(backend, "a", node="")["lines"] == []
    logs.write("n1", "".join(f"step {number}\n" for number in range(1_000)) + "\x1b[2J</pre>\r")
    told = read_tail(backend, "a", node="")
    assert (told["node"], told["nodes"]) == ("n1", ["n1"])
    assert told["lines"][-2:] == ["step 999", "\\u001b[2J</pre>"]
    assert len(told["lines"]) == MOST_LINES
    # A line that never ends costs as little as others.
    logs.write("n2", "x" * 3_000_000)
    [line] = read_tail(backend, "a", node="n2")["lines"]
    assert line == "x" * MOST_BYTES
    with pytest.raises(NotThere, match="no log of n3; nodes with one: n1, n2"):
        read_tail(backend, "a", node="n3")


def test_the_last_lines_are_found_in_any_text(tmp_path, monkeypatch):
    path = tmp_path / "n1.log"
    for text in (b"", b"\n", b"a", b"a\n", b"\n\n", b"a\nb", b"a\r10%\r20%\nb\n"):
        path.write_bytes(text)
        lines = text.split(b"\n")
        whole = [line + b"\n" for line in lines[:-1]] + ([lines[-1]] if lines[-1] else [])
        for block, count in itertools.product((1, 2, 1 << 16), range(4)):
            monkeypatch.setattr(following, "BLOCK", block)
            told = b"".join(line.text for line in following.read_lines({"n1": path}, count))
            assert told == b"".join(whole[max(0, len(whole) - count) :]), (text, block, count)
