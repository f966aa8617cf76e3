"""Games of the page's server: real processes, which end with their answer, their time or their viewer."""

import asyncio
import contextlib
import json
import os
import signal
import time
from pathlib import Path

import aiohttp
import pytest

from dljob_web.games import Game, GameError, Games
from dljob_web.guarding import BEARER
from tests.loops import on_loop
from tests.sidecar.drivers import find_children
from tests.web.served import FUTURES, LIMIT_S, QUESTION, TOKEN, Told, served

ENDLESS = Game(("http.server", "--bind", "127.0.0.1", "0"), b"", remedy="ask elsewhere")
"""A program that does not end."""

real = pytest.mark.processes


def echo(document):
    """Make a game of a program that answers what it is asked."""
    return Game(("json.tool",), json.dumps(document).encode(), remedy="ask elsewhere")


def children():
    return find_children(os.getpid())


async def until(is_so):
    end = time.monotonic() + LIMIT_S
    while not is_so():
        assert time.monotonic() < end
        await asyncio.sleep(0.01)


def play(game, **limits):
    return asyncio.run(Games(**limits).play(game, is_gone=lambda: False))


@real
@pytest.mark.story
def test_a_game_answers_or_says_why_not():
    assert json.loads(play(echo(FUTURES))) == FUTURES
    with pytest.raises(GameError, match="policy: none is so named") as caught:
        play(echo({"error": "policy: none is so named", "status": 400}))
    assert caught.value.status == 400
    broken = Game(("json.tool",), b"{", remedy="ask elsewhere")
    told = r"ends with code 1; the log of this server .* ask elsewhere"
    with pytest.raises(GameError, match=told) as caught:
        play(broken)
    assert caught.value.status == 500


@contextlib.asynccontextmanager
async def going(longest_s, game=ENDLESS):
    """Play a game that does not end; yields the task, and the process."""
    before = children()
    playing = asyncio.create_task(Games(longest_s=longest_s).play(game, is_gone=lambda: False))
    await until(lambda: children() - before)
    [process] = children() - before
    try:
        yield playing, process
    finally:
        playing.cancel()
        await asyncio.wait({playing}, timeout=LIMIT_S)


@real
@on_loop
async def test_a_game_has_as_much_processor_time_as_its_server_gives_it_time():
    async with going(299.5) as (playing, process):
        limits = Path(f"/proc/{process}/limits")
        await until(lambda: "Max cpu time 300 301 seconds" in " ".join(limits.read_text().split()))
        os.kill(process, signal.SIGXCPU)
        with pytest.raises(GameError, match="too much of the processor here; ask") as caught:
            await asyncio.wait_for(playing, LIMIT_S)
        assert caught.value.status == 504


@real
def test_a_game_ends_with_its_time():
    before = children()
    with pytest.raises(GameError, match=r"longer than 0\.2 s here; ask elsewhere") as caught:
        play(ENDLESS, longest_s=0.2)
    assert caught.value.status == 504
    # Of those before some may have ended.
    assert children() <= before


@real
@on_loop
async def test_a_game_has_no_variables_but_its_own(monkeypatch):
    monkeypatch.setenv("DLJOB_STORE", "mongodb://user:secret@store")
    game = ENDLESS._replace(environment={"PATH": os.environ["PATH"]})
    async with going(299.5, game) as (_, process):
        command = Path(f"/proc/{process}/cmdline")
        await until(lambda: b"http.server" in command.read_bytes())
        assert b"secret" not in Path(f"/proc/{process}/environ").read_bytes()


def test_a_viewer_has_one_turn_and_all_of_them_a_few():
    games = Games(most=2)
    with games.turn("ann"):
        with pytest.raises(GameError, match="another question of yours"), games.turn("ann"):
            pass
        with games.turn("bob"):
            with pytest.raises(GameError, match="another question is being") as caught:
                games.turn("eve").__enter__()
            assert caught.value.status == 429
        with games.turn("eve"):
            pass
    with games.turn("ann"):
        pass


@real
@pytest.mark.story
@on_loop
async def test_a_game_ends_with_its_viewer_and_the_next_one_is_played():
    class Endless(Told):
        game = ENDLESS

        def pose(self, question):
            return self.game

    source = Endless()
    before = children()
    async with served(source) as ask:
        async with aiohttp.ClientSession() as viewer:
            headers = {"Authorization": f"{BEARER}{TOKEN}"}
            asked = asyncio.create_task(
                viewer.post(f"{ask.address}api/v1/what-if", json=QUESTION, headers=headers)
            )
            await until(lambda: children() - before)
            asked.cancel()
        await until(lambda: children() <= before)
        source.game = echo(FUTURES)
        # The turn is over a moment after the process.
        while (answer := await ask.post("api/v1/what-if", QUESTION)).status == 429:
            pass
        assert answer.json == FUTURES
