"""Texts of other people's trainings and job files do no harm to the terminal that shows them."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from dljob.cli.output.forms import to_json, to_yaml
from dljob.cli.output.streams import harmless_document, harmless_output
from dljob.cli.verbs.watching.logs import Printer
from dljob.client.backend import LogLine
from dljob_wire import codec
from dljob_wire.harmless import harmless
from dljob_wire.messages import Problem
from tests.ctl.running import Command
from tests.ctl.terminals import Terminal
from tests.local.stages import job_document, staged

EVIL = "\x1b]0;owned\x07\x1b[2J\x1b[1;1H\x1b]52;c;aGk=\x07\x9b2J\x9d0;x\x9c\x1bPq\x1b\\\b\x7f\r\u202etxt\u2066\x1b[8mhidden"
COMMANDS = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1a\x1c-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]|\x1b(?!\\[[0-9;]*m)"
)


def on_a_terminal(folder: Path, *commands: tuple[str, ...]) -> str:
    script = (
        "import json, sys; from dljob.cli.main import run; from dljob.cli.output.streams import guard_output;"
        "guard_output(); [run(words) for words in json.loads(sys.argv[1])]"
    )
    with Terminal(
        json.dumps(commands), script=script, cwd=folder, columns=150, rows=40, TERM="xterm"
    ) as terminal:
        terminal.status()
    # The terminal itself begins each line with a carriage return.
    return terminal.seen.replace("\r\n", "\n")


@pytest.fixture
def evil(root: Path) -> Any:
    """A server with a job whose training has said everything that a terminal obeys."""
    with staged(root, n1=4) as up:
        document = job_document("evil", profile={"model": "m"})
        document["metadata"]["annotations"] = {"note": EVIL}
        document["spec"]["template"]["spec"]["containers"][0]["args"] = [EVIL.replace("\0", "")]
        up.do(lambda stage: stage.registry.submit(document, now=0.0))
        up.do(lambda stage: stage.give("evil", {"n1": [0, 1]}, message=f"it says {EVIL}"))
        yield root


VERBS = (
    ("describe", "evil"),
    ("why", "evil"),
    ("get", "-o", "wide"),
    ("get", "evil", "-o", "yaml"),
    ("get", "evil", "-o", "json"),
    ("history", "evil"),
    ("top", "--once"),
    ("get", f"no{EVIL}"),
)


@pytest.mark.processes
@pytest.mark.story
def test_no_verb_passes_terminal_commands_of_others(evil: Path, tmp_path: Path):
    told = on_a_terminal(tmp_path, *((*words, "--state", str(evil)) for words in VERBS))
    assert "it says" in told
    found = COMMANDS.search(told)
    assert found is None, ascii(told[max(0, found.start() - 80) : found.end() + 20])
    assert "\x1b[8m" not in told


def test_a_log_is_harmless_on_a_terminal_and_as_it_was_elsewhere(capfdbinary: Any):
    line = LogLine("n1", f"step 1\rstep 2 {EVIL} \x1b[31mred\x1b[0m\n".encode())
    for is_shown in (True, False):
        printer = Printer(is_shown=is_shown)
        printer.print(line)
        printer.flush()
        told = capfdbinary.readouterr().out
        if is_shown:
            assert COMMANDS.search(told.decode()) is None
            assert b"\x1b[31mred\x1b[0m\n" in told
        else:
            assert told == line.text


def test_programs_get_the_raw_text(evil: Path, dljob: Command):
    result = dljob("get", "evil", "-o", "json", "--state", evil)
    assert result.data["metadata"]["annotations"]["note"] == EVIL
    result = dljob("get", "evil", "-o", "yaml", "--state", evil)
    assert yaml.safe_load(result.stdout)["metadata"]["annotations"]["note"] == EVIL


def test_colours_of_ours_stay_and_those_that_hide_do_not():
    ours = "\x1b[32mRunning\x1b[0m \x1b[1;36mx\x1b[0m\n\ta"
    assert harmless_output(ours) == ours
    for text in ("\x1b[8m", "\x1b[30m", "\x1b[40m", "\x1b[7m", "\x1b[1;8m", "\x1b[38;5;0m"):
        assert "\x1b" not in harmless_output(f"a{text}b")


def test_text_for_programs_survives_a_round_trip():
    value = {"a": EVIL, "b": ["\u202e", "é\n"]}
    assert json.loads(harmless_output(to_json(value))) == value
    text = to_yaml(value)
    assert harmless_output(text) == text
    assert yaml.safe_load(text) == value
    assert COMMANDS.search(json.dumps(harmless_document(value), ensure_ascii=False)) is None


def test_text_of_a_sidecar_is_harmless_at_the_border():
    body = codec.encode(Problem("ExpressionInvalid", f"the log said {EVIL}", remedy="\n"))
    read = codec.decode(Problem, body)
    assert read.message == harmless(read.message)
    assert read.message.isprintable()
    assert codec.decode(Problem, codec.encode(read)) == read
    longest = codec.decode(Problem, codec.encode(Problem("A", "\x1b" * 2048)))
    assert len(longest.message) == 2048
