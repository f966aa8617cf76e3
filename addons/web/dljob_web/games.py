"""
Games that the page's server has played for its viewers: each is a process of its own, with limits.

A game plays two futures and takes seconds of a core, so a viewer plays one at a time, and all viewers a few. It ends with
its answer, with its time, or with its viewer. Called by :mod:`dljob_web.serving`.
"""

import asyncio
import json
import logging
import math
import resource
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Final, NamedTuple

log = logging.getLogger(__name__)

LONGEST_S: Final = 180.0
"""The default time limit of a game."""

LOOK_S: Final = 0.25
"""The interval of checks for viewers who left."""


class GameError(Exception):
    """A game has no answer; ``str()`` is one line that names the remedy."""

    def __init__(self, message: str, *, status: int) -> None:
        super().__init__(message)
        self.status = status


class Game(NamedTuple):
    """A module of ours that plays futures, and its question."""

    words: Sequence[str]
    """The words after ``python -m``."""
    question: bytes
    """Its standard input."""
    remedy: str
    """The advice to a viewer if the game fails."""
    environment: Mapping[str, str] | None = None
    """``None``: that of the server."""


class Games:
    def __init__(self, *, most: int = 1, longest_s: float = LONGEST_S) -> None:
        """``most`` games are played at the same time."""
        self._most = most
        self._longest_s = longest_s
        self._players: set[str] = set()

    @contextmanager
    def turn(self, player: str) -> Iterator[None]:
        """Let a viewer play within the block; raises :class:`GameError` if the viewer must wait."""
        if len(self._players) >= self._most:
            raise GameError("another question is being answered; ask again in a moment", status=429)
        if player in self._players:
            raise GameError(
                "another question of yours is being answered; ask again in a moment", status=429
            )
        # Nothing awaits between the checks and this, so that two requests cannot take one turn.
        self._players.add(player)
        try:
            yield
        finally:
            self._players.discard(player)

    async def play(self, game: Game, *, is_gone: Callable[[], bool]) -> str:
        """Return the answer, which is JSON; raises :class:`GameError`. No process is left when it returns."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", *game.words),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env=game.environment,
        )
        # Nothing awaits before the block that ends the process: a cancellation here would leave it
        # running.
        _limit(process.pid, self._longest_s)
        try:
            async with asyncio.timeout(self._longest_s):
                told = await _hear(process, game.question, is_gone)
        except TimeoutError as error:
            log.info("gives up a question after %.3g s", self._longest_s)
            raise GameError(
                f"the answer takes longer than {self._longest_s:.3g} s here; {game.remedy}",
                status=504,
            ) from error
        finally:
            # Also when the end of the server cancels this.
            if process.returncode is None:
                process.kill()
            await process.wait()
        return _check(told, game, process.returncode)


async def _hear(
    process: asyncio.subprocess.Process, question: bytes, is_gone: Callable[[], bool]
) -> bytes:
    """Return the answer of the process, unless the viewer leaves."""
    answering = asyncio.create_task(process.communicate(question))
    try:
        while not (await asyncio.wait({answering}, timeout=LOOK_S))[0]:
            # aiohttp lets handlers go on whose connection is closed, which the other answers rely on.
            if is_gone():
                log.info("gives up a question whose viewer has left")
                raise GameError("the viewer has left", status=408)
        return (await answering)[0]
    finally:
        # Not waited for: the process is ended right after this, and with it what is read here.
        answering.cancel()


def _limit(pid: int, seconds: float) -> None:
    """Let a process end with its processor time, also where this server ends before it can end the process."""
    whole = math.ceil(seconds)
    # A process that has ended already needs no limit.
    with suppress(ProcessLookupError):
        # The first of these limits ends it by a signal of its own, which shows the reason.
        resource.prlimit(pid, resource.RLIMIT_CPU, (whole, whole + 1))


def _check(told: bytes, game: Game, code: int | None) -> str:
    """Return an answer that is one; raises :class:`GameError`. ``code`` is the exit code of the process."""
    try:
        answer = json.loads(told)
    except ValueError as error:
        if code == -signal.SIGXCPU:
            problem = f"the answer takes too much of the processor here; {game.remedy}"
            raise GameError(problem, status=504) from error
        how = "ends without an answer" if not code else f"ends with code {code}"
        log.warning("a question is not answered: its process %s", how)
        raise GameError(
            f"the process that plays the futures {how}; the log of this server has the reason, or {game.remedy}",
            status=500,
        ) from error
    if "error" in answer:
        raise GameError(answer["error"], status=answer["status"])
    return told.decode()
