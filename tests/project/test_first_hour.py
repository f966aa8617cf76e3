"""The page of the first hour is typed: its commands work, and print what stands below them."""

import importlib.machinery
import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "scripts" / "first-hour"


@pytest.fixture(scope="module")
def first_hour():
    """The script as a module."""
    loader = importlib.machinery.SourceFileLoader("first_hour", str(SCRIPT))
    spec = importlib.util.spec_from_loader("first_hour", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["first_hour"] = module
    loader.exec_module(module)
    yield module
    del sys.modules["first_hour"]


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.timeout(900)
def test_the_first_hour_goes_as_its_page_says():
    done = subprocess.run(
        [sys.executable, SCRIPT, "--bounded"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr + done.stdout


def test_the_page_walks_through_all_of_it(first_hour):
    blocks = first_hour.read_page(first_hour.PAGE.read_text(encoding="utf-8"))
    commands = [block.command for block in blocks]
    walk = (
        *("make setup", "dljob simulate", "make demo", "dljob up", "dljob submit", "dljob get"),
        *("dljob why", "dljob top --once", "dljob history", "dljob describe", "dljob logs"),
        *("dljob cancel", "dljob down"),
    )
    places = [next(i for i, each in enumerate(commands) if each.startswith(word)) for word in walk]
    assert places == sorted(places)
    pictures = [block.picture for block in blocks if block.picture]
    assert len(pictures) == 3
    for picture in pictures:
        text = (first_hour.PAGE.parent / picture).read_text(encoding="utf-8")
        assert text.startswith("<svg")
        assert len(text) < 60_000
        assert "@font-face" not in text
        assert "url(http" not in text


BLOCK = "```console\n$ dljob get\nNAME   GPUS   AGE\na      4      12s\n```\n"


@pytest.mark.parametrize(
    ("printed", "is_same"),
    [
        ("NAME   GPUS   AGE\na      2      1m3s\n", True),
        ("NAME      GPUS   AGE\na         -      3.5s\n", True),
        ("NAME   AGE\na      12s\n", False),
        ("NAME   GPUS   AGE\nb      4      12s\n", False),
        ("NAME   GPUS   AGE\n", False),
        ("", False),
    ],
)
def test_numbers_may_differ_and_words_may_not(first_hour, printed, is_same):
    (block,) = first_hour.read_page(BLOCK)
    assert (first_hour.compare(block, printed) == []) is is_same
    (varying,) = first_hour.read_page(f"<!-- varies -->\n{BLOCK}")
    is_headed = printed.split()[:3] == ["NAME", "GPUS", "AGE"]
    assert (first_hour.compare(varying, printed) == []) is is_headed


def test_a_page_is_written_with_what_was_printed(first_hour):
    text = f"# A page\n\n{BLOCK}\nMore.\n"
    (block,) = first_hour.read_page(text)
    fresh = first_hour.replace(block, output="other\n")
    assert first_hour.write_page(text, [fresh]) == (
        "# A page\n\n```console\n$ dljob get\nother\n```\n\nMore.\n"
    )


@pytest.mark.parametrize(("command", "status"), [("echo yes", 0), ("exit 3", 3)])
def test_a_command_is_typed_in_a_terminal(first_hour, tmp_path, command, status):
    typed = f"test -t 1 && {command}"
    ended, printed = first_hour.type_command(typed, tmp_path, {"PATH": "/usr/bin:/bin"})
    assert ended == status
    assert first_hour.settle(printed) == ("yes\n" if status == 0 else "")


def test_of_what_moves_only_the_end_is_written(first_hour):
    moved = "start\n\x1b[1ma\x1b[0m 1\nb 1\r\x1b[2K\x1b[1A\x1b[2Ka 2\nb 2\n\r1 of 2\r\x1b[Kdone\n"
    assert first_hour.settle(moved) == "start\na 2\nb 2\ndone\n"
