"""The page of the first hour is typed: its commands work, and print the text below them."""

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import yaml

from dljob.cli.verbs.server.down import find_process
from tests.scripts import loaded

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "scripts" / "first-hour"

TIDY_S = 240.0
"""The script gives each of its two last commands a minute."""


@pytest.fixture(scope="module")
def first_hour():
    with loaded("first-hour") as module:
        yield module


@contextmanager
def typing(*options: str, output: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run the script until the block ends; it tidies up before it ends, and then its output is shown."""
    with output.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, SCRIPT, *options], stdout=file, stderr=subprocess.STDOUT
        )
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(TIDY_S)
        finally:
            process.kill()
            process.wait(60.0)
            # Pytest shows it where the test fails, be it by its own time limit.
            sys.stdout.write(output.read_text(encoding="utf-8", errors="replace"))


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.timeout(2700)
def test_the_first_hour_goes_as_its_page_says(tmp_path):
    with typing("--bounded", output=tmp_path / "output") as process:
        assert process.wait(2400.0) == 0


def test_the_page_walks_through_all_of_it(first_hour):
    blocks = first_hour.read_page(first_hour.PAGE.read_text(encoding="utf-8"))
    commands = [block.command for block in blocks]
    walk = (
        *("make setup", "dljob up", "dljob run --name first", "dljob why first"),
        *(
            "dljob run --name second",
            "dljob top --once",
            "dljob logs",
            "dljob cancel",
            "dljob down",
        ),
    )
    places = [next(i for i, each in enumerate(commands) if each.startswith(word)) for word in walk]
    assert places == sorted(places)
    pictures = [block.picture for block in blocks if block.picture]
    assert len(pictures) == 2
    for picture in pictures:
        text = (first_hour.PAGE.parent / picture).read_text(encoding="utf-8")
        assert text.startswith("<svg")
        assert len(text) < 60_000
        assert "@font-face" not in text
        assert "url(http" not in text


def test_the_quick_start_on_kind_runs_the_script_of_the_page(first_hour):
    [file] = first_hour.FILE.finditer(first_hour.PAGE.read_text(encoding="utf-8"))
    found = {
        path.stem: list(yaml.safe_load_all(path.read_text(encoding="utf-8")))
        for path in (ROOT / "manifests" / "quickstart").iterdir()
    }
    [script, first], [second] = found["first"], found["second"]
    assert script["data"] == {file["name"]: file["text"]}
    assert [each["metadata"]["name"] for each in (first, second)] == ["first", "second"]


BLOCK = "```console\n$ dljob get\nNAME   GPUS   AGE\na      4      12s\n```\n"


@pytest.mark.parametrize(
    ("printed", "is_same"),
    [
        ("NAME      GPUS   AGE\na         -      3.5s\n", True),
        ("NAME   AGE\na      12s\n", False),
        ("NAME   GPUS   AGE\nb      4      12s\n", False),
        ("", False),
    ],
)
def test_numbers_may_differ_and_words_may_not(first_hour, printed, is_same):
    (block,) = first_hour.read_page(BLOCK)
    assert (first_hour.compare(block, printed) == []) is is_same
    (varying,) = first_hour.read_page(f"<!-- varies -->\n{BLOCK}")
    is_headed = printed.split()[:3] == ["NAME", "GPUS", "AGE"]
    assert (first_hour.compare(varying, printed) == []) is is_headed


def test_page_gets_the_printed_output(first_hour):
    text = f"# A page\n\n{BLOCK}\nMore.\n"
    (block,) = first_hour.read_page(text)
    fresh = first_hour.replace(block, output="other\n")
    assert first_hour.write_page(text, [fresh]) == (
        "# A page\n\n```console\n$ dljob get\nother\n```\n\nMore.\n"
    )


@pytest.mark.processes
def test_a_command_is_typed_in_a_terminal(first_hour, tmp_path):
    typed = "test -t 1 && echo yes && exit 3"
    ended, printed = first_hour.type_command(typed, tmp_path, {"PATH": "/usr/bin:/bin"})
    assert (ended, first_hour.settle(printed)) == (3, "yes\n")


def test_only_the_end_of_a_moving_output_is_written(first_hour):
    moved = "start\n\x1b[1ma\x1b[0m 1\nb 1\r\x1b[2K\x1b[1A\x1b[2Ka 2\nb 2\n\r1 of 2\r\x1b[Kdone\n"
    assert first_hour.settle(moved) == "start\na 2\nb 2\ndone\n"


def begin(first_hour, folder: Path, environment: dict[str, str]) -> None:
    for command in (
        "dljob up --virtual-gpus 1 --detach",
        "dljob run --name lasting --gpus 1 --detach -- sleep 600",
        "dljob wait lasting --for Running --timeout 5m",
    ):
        status, printed = first_hour.type_command(command, folder, environment)
        assert status == 0, printed


def fail(_home: Path) -> None:
    sys.exit(1)


def get_a_signal(_home: Path) -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def lose_the_server(home: Path) -> None:
    server = find_process(home / ".local/state/dljob/run/dljob.sock")
    assert server is not None
    os.kill(server, signal.SIGKILL)
    sys.exit(1)


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize("end", [fail, get_a_signal, lose_the_server])
def test_nothing_is_left_behind(first_hour, end):
    # Short, because sockets lie below it.
    folder = Path(tempfile.mkdtemp(prefix="first-hour-"))
    home = folder / "home"
    home.mkdir()
    environment = {"HOME": str(home), "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}

    def find_commands() -> list[bytes]:
        found = []
        for process in first_hour.find_processes():
            # One may end while it is looked at.
            with suppress(OSError):
                if first_hour.has_home(process, home):
                    found.append(Path(f"/proc/{process}/cmdline").read_bytes())
        return found

    def go() -> None:
        with first_hour.ending(folder, folder, environment):
            begin(first_hour, folder, environment)
            assert b"sleep\x00600\x00" in find_commands()
            end(home)

    with pytest.raises(SystemExit):
        go()
    assert not find_commands()
    assert not folder.exists()


@pytest.mark.processes
def test_command_after_soon_repeats_until_it_matches(first_hour, tmp_path):
    text = "<!-- soon -->\n```console\n$ cat count && echo again >> count\nagain\nagain\n```\n"
    (tmp_path / "count").touch()
    blocks = first_hour.read_page(text)
    environment = {"PATH": "/usr/bin:/bin"}
    fresh, wrong = first_hour.go_through(blocks, tmp_path, environment, {}, draws=False)
    assert not wrong
    assert fresh == blocks


def test_extra_output_of_a_slow_machine_is_no_difference(first_hour):
    (block,) = first_hour.read_page(BLOCK)
    notice = "dljob up does not answer yet; its log is ~/dljob.log. Ctrl-C gives up.\n"
    assert not first_hour.compare(block, notice + block.output)
