"""
Calls of tools that wait or run, by the ids of their requests.

A game takes minutes, and questions about jobs do not wait for it: they have a thread of their own, in which they
keep their order. A client can give a call up (:class:`Halt`); nothing is answered to it then.
"""

import sys
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from threading import Lock
from typing import Final, NamedTuple, Self

MOST_GAMES: Final = 2
"""More games at once would take memory and cores from trainings."""

MOST_CALLS: Final = 100
"""The limit of unanswered calls; a client that sends more does not read the answers."""

Identity = str | int


class Halted(Exception):
    """The client gave the call up."""


class Halt:
    """The cancellation of a call: its state, and a function that ends the call's process."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._end: Callable[[], None] | None = None
        self._is_set = False

    @property
    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        """Give the call up, and end its process."""
        with self._lock:
            self._is_set = True
            if self._end is not None:
                self._end()

    @contextmanager
    def ending(self, end: Callable[[], None]) -> Iterator[None]:
        """Call ``end`` if the client gives the call up, or already has."""
        with self._lock:
            # Under the lock of `set`: a call that was given up before is ended here, and a
            # later one by `set`. Without it a game could start between the two and play on.
            self._end = end
            if self._is_set:
                end()
        try:
            yield
        finally:
            with self._lock:
                self._end = None


class NotTaken(Exception):
    """A call is refused; ``str()`` has the reason."""


class _Call(NamedTuple):
    halt: Halt
    plays: bool


class Calls:
    """The calls of one client; leaving the context waits until all of them have ended."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._calls: dict[Identity, _Call] = {}
        self._questions = ThreadPoolExecutor(1, thread_name_prefix="questions")
        self._games = ThreadPoolExecutor(MOST_GAMES, thread_name_prefix="games")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        # A game would run for minutes, and its answer has no reader.
        with self._lock:
            games = [call.halt for call in self._calls.values() if call.plays]
        # Not under the lock, which the threads that `shutdown` waits for need in `finish`.
        for halt in games:
            halt.set()
        self._games.shutdown()
        self._questions.shutdown()

    def begin(self, identity: Identity, act: Callable[[Halt], None], *, plays: bool) -> None:
        """Call ``act`` in a thread; raises :class:`NotTaken`."""
        call = _Call(Halt(), plays)
        with self._lock:
            if identity in self._calls:
                raise NotTaken("id: a call with this id waits or runs")
            if len(self._calls) >= MOST_CALLS:
                raise NotTaken(f"{MOST_CALLS} calls wait or run; read their answers first")
            self._calls[identity] = call
        threads = self._games if plays else self._questions
        threads.submit(_act, act, call.halt).add_done_callback(_report)

    def halt(self, identity: Identity) -> None:
        """Give a call up; one with an unknown id was answered before."""
        with self._lock:
            call = self._calls.pop(identity, None)
        if call is not None:
            call.halt.set()

    def finish(self, identity: Identity, halt: Halt) -> bool:
        """Remove a call, and return whether its client waits for the answer."""
        with self._lock:
            call = self._calls.get(identity)
            # A client may use the id of a call that it has
            # given up. Then this is another call, which stays.
            if call is not None and call.halt is halt:
                del self._calls[identity]
            return not halt.is_set


def _act(act: Callable[[Halt], None], halt: Halt) -> None:
    # The client may have given it up while it waited for a thread.
    if not halt.is_set:
        act(halt)


def _report(future: "Future[None]") -> None:
    """Print an unexpected error, because nothing else reads the future."""
    error = future.exception()
    # A client that no longer reads has given up all its calls.
    if error is not None and not isinstance(error, BrokenPipeError):
        traceback.print_exception(error, file=sys.stderr)
