"""How processes ended, in the words of their SideCars."""

from collections.abc import Iterable, Iterator, Sequence

from dlcontrol.scene import Seat
from dlwire.messages import Phase, Process, State

NOT_STARTED = frozenset(
    {"CannotStart", "CommandNotExecutable", "CommandNotFound", "TooManyProcesses", "UnknownGPUs"}
)
"""Why processes could not be started at all; the message says what was not found."""
KILLED = frozenset({"OutOfMemory"})
"""Why the kernel killed one that was; a signal alone would not say it."""


def ended_well(seats: Iterable[Seat]) -> list[Seat]:
    """Those whose processes all ended by themselves, as they should."""
    return [
        seat
        for seat in seats
        if seat.state is not None and seat.state.released and seat.phase is Phase.EXITED
    ]


def describe_failure(failed: Sequence[Seat]) -> str:
    """Say it in half a sentence: what could not be started, or how the first rank ended."""
    for state in _states(failed):
        for problem in state.problems:
            if problem.name in NOT_STARTED:
                return problem.message
            if problem.name in KILLED:
                return f"{problem.message}; {problem.remedy}"
    for process in _processes(failed):
        if process.signal is not None:
            return f"rank {process.rank} was ended by signal {process.signal}"
        if process.exit_code:
            return f"rank {process.rank} exited with status {process.exit_code}"
    return "its processes ended badly"


def code_of(failed: Sequence[Seat]) -> int | None:
    """The exit status of the job, as a shell tells it."""
    for process in _processes(failed):
        if process.signal is not None:
            return 128 + process.signal
        if process.exit_code:
            return process.exit_code
    return None


def _states(seats: Sequence[Seat]) -> Iterator[State]:
    return (seat.state for seat in seats if seat.state is not None)


def _processes(seats: Sequence[Seat]) -> Iterator[Process]:
    return (process for state in _states(seats) for process in state.processes)
