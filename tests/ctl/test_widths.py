"""Tables in terminals of several widths: they fit, or say what they leave out; files get all."""

import os
import re
import sys

import pytest

from dljob.cli.output import printing, texts
from dljob.core.model import CauseCode
from dljob_lab.verbs import comparisons

CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


@pytest.fixture
def terminal(monkeypatch):
    """Make standard output a terminal of ``columns`` columns, for the command in this process."""

    def become(columns):
        monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
        monkeypatch.setenv("COLUMNS", str(columns))
        monkeypatch.setenv("LINES", "24")
        monkeypatch.setenv("TERM", "xterm")

    return become


def lines_of(result):
    return CONTROL.sub("", result.stdout).splitlines()


@pytest.fixture
def jobs(played, monkeypatch):
    # A PATH is many times as wide as a terminal, and matters where no virtual environment does.
    monkeypatch.delenv("VIRTUAL_ENV", raising=False)
    monkeypatch.setenv(
        "PATH", ":".join([os.environ["PATH"], *(f"/opt/tool-{n}/bin" for n in range(20))])
    )
    played.submit("resnet", "a-job-with-a-long-name")
    played.do("give", "resnet", {"n1": (0, 1)}, iteration=100)
    message = "waits: needs 4 GPUs on one node; none is free until resnet ends"
    played.do("take", "a-job-with-a-long-name", CauseCode.NO_ROOM, message=message)
    return played


def test_job_list_fits_or_names_cut_columns(jobs, terminal):
    piped = lines_of(jobs("get"))
    whole = piped[0].split()
    for columns in (60, 100, 160):
        terminal(columns)
        told = lines_of(jobs("get"))
        assert max(map(len, told)) <= columns
        shown = told[0].split()
        hidden = [title for title in whole if title not in shown]
        if hidden:
            text = " ".join(told)
            note = re.search(r"No room for (.*) in (\d+) columns; -o wide prints all\.", text)
            assert note is not None
            assert sorted(note[1].split(", ")) == sorted(hidden)
            assert int(note[2]) == columns
        assert {"NAME", "PHASE", "GPUS"} <= set(shown)
        assert bool(hidden) is (max(map(len, piped)) > columns)


def test_the_wide_list_shows_all_of_it_and_breaks_sentences_between_words(jobs, terminal):
    whole = jobs("get", "-o", "wide").stdout
    terminal(80)
    text = "\n".join(lines_of(jobs("get", "-o", "wide")))
    assert "No room" not in text
    assert all(title in text for title in whole.splitlines()[0].split())
    assert "until resnet ends" in " ".join(text.split())


def test_a_file_gets_all_of_it(jobs):
    told = lines_of(jobs("top", "--once"))
    assert any("until resnet ends" in line for line in told)
    assert "…" not in "".join(told)
    assert "AGE" in lines_of(jobs("get"))[0]


def test_picture_names_cut_parts(jobs, terminal):
    for columns in (60, 160):
        terminal(columns)
        told = lines_of(jobs("top", "--once"))
        assert max(map(len, told)) <= columns
        foot = " ".join(" ".join(told).split())
        if columns < 160:
            assert "reasons are cut: dljob why NAME" in foot
            assert "-o wide prints all" in foot
    whole = lines_of(jobs("top", "--once", "-o", "wide"))
    assert any("until resnet ends" in line for line in whole)
    assert "no room" not in " ".join(whole)
    result = jobs("top", "-o", "wide")
    assert (result.status, "-o wide needs --once" in result.stderr) == (2, True)


def test_sentences_go_on_below_themselves(terminal):
    rows = [("a", "one two three four five six seven eight nine ten"), ("b", "short")]
    terminal(40)
    assert texts.tabulate(("NAME", "WHY"), rows) == (
        "NAME   WHY\n"
        "a      one two three four five six seven\n"
        "       eight nine ten\n"
        "b      short\n"
    )


def test_a_reason_is_broken_between_words_at_a_terminal_and_whole_in_a_file(jobs, terminal):
    columns = 80
    name = "a-job-with-a-long-name"
    message = jobs("why", name).stdout.splitlines()[0]
    assert len(message) > columns
    assert f"Why:           {message}\n" in jobs("describe", name).stdout
    terminal(columns)
    for verb in ("why", "describe"):
        told = lines_of(jobs(verb, name))
        assert max(map(len, told)) <= columns
        assert message in " ".join(" ".join(told).split())


def test_comparison_names_cut_columns(dljob, folder, terminal):
    command = ("compare", "five.csv", "--gpus", 8, "--policy", "srtf", "--policy", "fifo")
    kept = ("--jobs", 1, "--resume", "kept.jsonl")
    for columns in (60, 100, 400):
        terminal(columns)
        lines = lines_of(dljob(*command, *kept))
        assert max(map(len, lines)) <= columns
        told, _, below = "\n".join(lines).partition("Assumed:")
        assert below
        # No cell is cut, and one empty line is above what was assumed.
        assert "…" not in told
        assert "\n\n\n" not in told
        table, _, note = " ".join(told.split()).partition("No room for ")
        assert bool(note) is (columns < 400)
        for name in (*comparisons.LEAST, *comparisons.TITLES.values()):
            if name != "worst":
                assert (name in table) is not (name in re.split(", | in ", note)), name
    terminal(60)
    wide = " ".join(lines_of(dljob(*command, *kept, "-o", printing.WIDE)))
    assert "No room" not in wide
    assert wide.count("from–to") == len(comparisons.TITLES)
