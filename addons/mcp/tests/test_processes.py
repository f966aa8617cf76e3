"""``dljob mcp`` with games that have no end, and with clients that leave or send what is no message."""

import errno
import os
import time
from contextlib import closing
from pathlib import Path

import pytest

from addons.mcp.tests.agents import LONGEST_S, Pipes, serving
from dljob_mcp.serving import MOST_GAMES
from tests.ctl.running import FIVE
from tests.sidecar.drivers import find_children

pytestmark = pytest.mark.processes


class Endless:
    """A folder of job files, one of which is a pipe, so that a game that reads it has no end."""

    def __init__(self, folder):
        folder.mkdir()
        self.name = folder.name
        self._pipe = folder / "jobs.yaml"
        os.mkfifo(self._pipe)
        self._writer = None

    def wait_until_read(self):
        def opens():
            try:
                self._writer = os.open(self._pipe, os.O_WRONLY | os.O_NONBLOCK)
            except OSError as error:
                if error.errno != errno.ENXIO:
                    raise
                return False
            return True

        until(opens)

    def wait_until_dropped(self):
        writer = self._writer
        assert writer is not None

        def is_dropped():
            try:
                os.write(writer, b"#")
            except BrokenPipeError:
                return True
            return False

        until(is_dropped)

    def close(self):
        if self._writer is not None:
            os.close(self._writer)


def until(holds):
    end = time.monotonic() + LONGEST_S
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.fixture
def traces(tmp_path):
    folder = tmp_path / "traces"
    folder.mkdir()
    (folder / "five.csv").write_text(FIVE, encoding="utf-8")
    return folder


@pytest.fixture
def endless(traces):
    with closing(Endless(traces / "endless")) as endless:
        yield endless


@pytest.mark.story
def test_a_game_that_is_given_up_ends_and_others_answer_meanwhile(root, traces, endless):
    with serving("--state", root, cwd=traces) as agent:
        game = agent.begin_call("simulate", trace="endless")
        endless.wait_until_read()
        assert "no dljob up answers" in agent.refusal("list_jobs")
        game.cancel()
        endless.wait_until_dropped()
        assert agent.call("simulate", trace="five.csv", policies=["fifo"])["results"]


def test_a_game_that_waits_is_given_up_before_it_begins(root, traces, endless):
    others = [Endless(traces / f"other-{number}") for number in range(MOST_GAMES)]
    with serving("--state", root, cwd=traces) as agent:
        games = [agent.begin_call("simulate", trace=each.name) for each in others]
        for each in others:
            each.wait_until_read()
        waits = agent.begin_call("simulate", trace="endless")
        assert "no dljob up answers" in agent.refusal("list_jobs")
        waits.cancel()
        for game in games:
            game.cancel()
        for each in others:
            each.wait_until_dropped()
            each.close()
        assert agent.call("simulate", trace="five.csv", policies=["fifo"])["results"]
        with pytest.raises(OSError, match="No such device"):
            os.open(endless._pipe, os.O_WRONLY | os.O_NONBLOCK)


@pytest.mark.story
@pytest.mark.parametrize(("leave", "status"), [("close", 0), ("terminate", 143)])
def test_the_end_of_the_input_and_a_signal_end_games(
    leave, status, root, tmp_path, traces, endless
):
    # Traces of other folders are for the user to allow.
    with Pipes("--state", root, "--traces", traces, cwd=tmp_path) as pipes:
        assert pipes.greet()["serverInfo"]["name"] == "dljob"
        pipes.ask("tools/call", name="simulate", arguments={"trace": "endless"})
        endless.wait_until_read()
        [game] = find_children(pipes.process.pid)
        if leave == "terminate":
            pipes.process.terminate()
            pipes.process.wait(LONGEST_S)
        ended, answers, problems = pipes.close()
        assert (ended, problems) == (status, b"")
        assert not any("result" in each for each in answers)
        assert not Path(f"/proc/{game}").exists()
    endless.wait_until_dropped()


def test_a_client_that_reads_nothing_more_ends_games_without_a_traceback(root, traces, endless):
    with Pipes("--state", root, cwd=traces) as pipes:
        pipes.greet()
        pipes.ask("tools/call", name="simulate", arguments={"trace": "endless"})
        endless.wait_until_read()
        pipes.process.stdout.close()
        pipes.ask("tools/list")
        endless.wait_until_dropped()
        pipes.process.stdin.close()
        pipes.process.wait(LONGEST_S)
        assert b"Traceback" not in pipes.process.stderr.read()
        pipes.process.stdin = pipes.process.stdout = None


def test_no_line_ends_the_server_and_it_writes_messages_alone(root):
    with Pipes("--state", root, cwd=root) as pipes:
        wrong = (
            b"{",
            b"\xff\x00",
            b"[" * 100_000,
            b'"' + b"x" * 5_000_000 + b'"',
            b'{"jsonrpc": "2.0", "id": ' + b"9" * 5000 + b', "method": "ping"}',
            b'{"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": [1]}}',
        )
        for line in wrong:
            pipes.send(line)
        pipes.greet()
        for line in wrong:
            pipes.send(line)
        pipes.ask("tools/call", name="get_job", arguments=[])
        assert pipes.read()["error"]["code"] == -32602
        pipes.ask("tools/call", name="get_job", arguments={"job": "x" * 1_000_000})
        assert len(pipes.read()["result"]["content"][0]["text"]) < 2000
        status, answers, problems = pipes.close()
        assert (status, answers) == (0, [])
        assert b"Traceback" not in problems
