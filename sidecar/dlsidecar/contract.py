"""
The interfaces by which the agent asks for processes, GPUs and progress.

``dlsidecar.agent`` is written against these two protocols and nothing else, so that the tests of
the agent can do without processes, and the tests of the processes without an agent.
"""

from __future__ import annotations

from typing import Callable, Protocol

from dlsidecar.behaviour.events import Event
from dlsidecar.diagnosing.tracebacks import LastWords
from dlwire.messages import Gpu, Post, Problem, Process, Progress, Run, Warmth

Report = Callable[[Event], None]
"""How a supervisor reports its news: on the thread of the event loop, and never from within one of
the calls below, because the machine is in the middle of a step then (``loop.call_soon`` will do).
Events carry the attempt they belong to."""

Changed = Callable[[], None]
"""How an observer says that its facts differ from those it gave last, on the loop's thread too.
It does not call it for values that differ with every look (a utilisation, an age)."""


class Supervisor(Protocol):
    """
    Carries out what the machine decided, and reports what became of it.

    No call waits and none raises for anything that happens to the job: what goes wrong is
    reported. The supervisor keeps no opinion about what shall be; it never starts or stops
    anything by itself, with one exception: after :meth:`kill` it goes on killing what appears
    until it can report :class:`~dlsidecar.behaviour.events.Gone`.
    """

    def start(self, run: Run, attempt: int) -> None:
        """
        Start the processes of a run; is only called when nothing of the job lives.

        Reports ``Started`` or ``StartFailed`` before the last of its ranks has ended, ``RankEnded``
        for each rank that ends after it became the user's program, and at last ``Gone``, once:
        whenever it comes to pass that no process of the job is left. Where something else is in
        the way of that, ``Lingering`` says what. Nothing is reported of an attempt after its ``Gone``.
        """
        ...

    def prepare(self, processes: int) -> None:
        """Expect a start of ``processes`` processes, after the end of those that live."""
        ...

    def checkpoint(self, *, is_trial: bool = False) -> None:
        """
        Ask the job to save itself; report ``CheckpointDone`` or ``CheckpointFailed``.

        With ``is_trial`` the job is to go on, so that a process which ends then ends by itself.
        """
        ...

    def give_up_checkpoint(self) -> None:
        """Watch for the confirmation of the latest request no longer, and report nothing of it."""
        ...

    def terminate(self) -> None:
        """
        Send SIGTERM to every process of the job, also where the start is still under way.

        Harmless where nothing is left; ``Gone`` is then reported all the same, if it was not yet.
        """
        ...

    def kill(self) -> None:
        """Send SIGKILL to every process of the job until none is left; harmless to repeat."""
        ...


class Facts(Protocol):
    """The facts of the state that the machine does not hold; each call is cheap and never blocks."""

    def processes(self) -> tuple[Process, ...]:
        """The ranks of the latest start, also after they ended."""
        ...

    def progress(self) -> Progress: ...

    def gpus(self) -> tuple[Gpu, ...]: ...

    def warmth(self) -> Warmth: ...

    def problems(self) -> tuple[Problem, ...]:
        """Return the current problems, without those that were reported as an event."""
        ...

    def last_words(self) -> LastWords:
        """Return the lines that were printed around the first failure of the latest start."""
        ...

    def post(self, post: Post) -> None:
        """Take a report of the training process over its socket."""
        ...
