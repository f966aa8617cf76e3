"""
The interfaces by which the agent asks for processes, GPUs and progress.

``dljob_sidecar.agent`` is written against these two protocols and nothing else, so that the tests of
the agent can do without processes, and the tests of the processes without an agent.
"""

from __future__ import annotations

from typing import Callable, Protocol

from dljob_sidecar.behaviour.events import Event
from dljob_sidecar.diagnosing.tracebacks import LastWords
from dljob_wire.messages import Gpu, Post, Problem, Process, Progress, Run, Target, Warmth

Report = Callable[[Event], None]
"""Reports an event of a supervisor on the event loop, and never from within one of the calls below,
because the machine is in the middle of a step then. Events name their attempt.
"""

Changed = Callable[[], None]
"""Signals changed facts on the loop's thread, but not values that differ in every reading."""


class Supervisor(Protocol):
    """
    Carries out the decisions of the machine, and reports the results.

    No call waits, and none raises for anything that happens to the job: failures are reported. The
    supervisor starts or stops nothing by itself, with one exception: after :meth:`kill` it kills
    every new process until it can report :class:`~dljob_sidecar.behaviour.events.Gone`.
    """

    def start(self, run: Run, attempt: int, *, joins: bool = False) -> None:
        """
        Start the processes of a run; called only when no process of the job lives.

        With ``joins`` they join those of other containers; the reports of a live change follow.

        Reports ``Started`` or ``StartFailed`` before the last of its ranks has ended, ``RankEnded``
        for each rank that ends after it became the user's program, and finally ``Gone``, once, when
        no process of the job is left. ``Lingering`` reports any other obstacle. Nothing is reported
        for an attempt after its ``Gone``.
        """
        ...

    def prepare(self, processes: int) -> None:
        """Expect a start of ``processes`` processes after the present ones have ended."""
        ...

    def checkpoint(self, *, is_trial: bool = False) -> None:
        """
        Ask the job to save itself; report ``CheckpointDone`` or ``CheckpointFailed``.

        With ``is_trial`` the job is to continue, so a process that ends then has ended by itself.
        """
        ...

    def give_up_checkpoint(self) -> None:
        """Stop watching for the latest request's confirmation, and report nothing about it."""
        ...

    def change(self, run: Run, target: Target) -> None:
        """
        Change the processes of the run into those of the target without ending those that stay.

        Reports ``Changed``, ``ChangeRefused`` or ``ChangeFailed``, and before it ``Gathered``. A
        process that leaves is not reported, unless all leave; ranks in reports are those of the run
        until ``Changed``, and those of the target from then on.
        """
        ...

    def try_live(self, run: Run, number: int) -> None:
        """Let the processes go through a live change in which all stay; the same reports follow."""
        ...

    def withdraw(self) -> None:
        """Take the live change back; report ``Withdrawn`` with the proof, or ``NotWithdrawn``."""
        ...

    def terminate(self) -> None:
        """
        Send SIGTERM to every process of the job, even during a start.

        Without a living process, the call only reports ``Gone``, if that is still due.
        """
        ...

    def kill(self) -> None:
        """Send SIGKILL to every process of the job until none is left; safe to repeat."""
        ...


class Facts(Protocol):
    """The facts that the machine does not hold; each call is cheap and never blocks."""

    def processes(self) -> tuple[Process, ...]:
        """The ranks of the latest start, including ended ones."""
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
