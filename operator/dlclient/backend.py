"""
The interface between the verbs and the place where jobs run: a cluster or one machine.

Jobs, nodes and all else travel as the documents that ``-o json`` prints, for they are what every
place has in common. :mod:`dlclient.local.local_backend` asks the ``dljob up`` of this machine, and
:mod:`dlclient.cluster.backend` the API server of a Kubernetes cluster.
"""

import enum
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    # The verbs of every day must not load the model of the brain, and numpy with it.
    from dlcore.recording.record import Record

Json = dict[str, Any]


class Complaint(NamedTuple):
    """The problems of one of several documents."""

    document: int
    """Its number."""
    line: str
    """The problem: field, what is wrong, remedy."""
    path: str = ""
    """Where in the document the field is."""


class BackendError(Exception):
    """It was not done; ``str()`` is one line that names the remedy."""

    def __init__(self, message: str, complaints: Sequence[Complaint] = ()) -> None:
        super().__init__(message)
        self.complaints = tuple(complaints)


class Away(BackendError):
    """No server answers there."""


class NotThere(BackendError):
    """There is no such job, node or GPU."""


class Conflict(BackendError):
    """Another program has changed it in between, or its state does not allow it."""


class JobList(NamedTuple):
    """Some jobs, as they are at a version."""

    items: list[Json]
    version: str = ""
    removed: tuple[str, ...] = ()
    """When watching: the jobs that are gone."""
    complete: bool = True
    """When watching: whether what was known before is to be forgotten."""


class Created(NamedTuple):
    """Jobs that were taken in, or could be."""

    items: list[Json]
    notices: list[str]
    """Notes about their fields that have no effect there."""


class Plan(NamedTuple):
    """The decision that would follow now."""

    effects: list[Json]
    notices: list[str]
    tells_others: bool = True
    """Whether it says of all other jobs what becomes of them."""


class Keeping(enum.Enum):
    """Whether the checkpoints in a job's own folder stay when the job is cancelled."""

    USUAL = ""
    """They are removed, but those of a Completed job are kept."""
    KEEP = "keepCheckpoints"
    REMOVE = "removeCheckpoints"


def warn(line: str) -> None:
    """Print a line that is not data, to standard error."""
    sys.stderr.write(f"{line}\n")


def never() -> bool:
    """Say that a log is followed until the job has ended."""
    return False


class LogQuery(NamedTuple):
    """Which output is asked for."""

    node: str = ""
    """Of which node; empty: of all."""
    lines: int | None = None
    """How many of the last lines; ``None``: all."""
    follow: bool = False
    since: float | None = None
    """In how many seconds it was written; ``None``: at any time."""
    is_over: Callable[[], bool] = never
    """Asked from time to time while the log is followed, which ends once this holds."""


class LogLine(NamedTuple):
    """A line that the training wrote, with its end."""

    node: str
    text: bytes


class Backend(Protocol):
    """The place. Every method raises :class:`BackendError`."""

    @property
    def home(self) -> str:
        """The namespace whose jobs are called by their name alone; empty: those of none are."""

    @property
    def look_seconds(self) -> float:
        """How often a verb may read everything without being a burden."""

    def open_another(self) -> "Backend":
        """Ask the same place by a connection of its own, such as from another thread."""

    def close(self) -> None:
        """Let go of what is open."""

    def about(self) -> Json:
        """Tell which controller decides there."""

    def list_jobs(self, selector: str = "") -> JobList:
        """List the jobs whose labels are selected."""

    def watch_jobs(self, selector: str, version: str) -> Iterator[JobList]:
        """Yield what changes after this version, as it does, whether it is away for a while or not."""

    def get_job(self, name: str) -> Json:
        """Show a job."""

    def create_jobs(self, documents: Sequence[Json], *, dry_run: bool = False) -> Created:
        """Submit jobs, all or none."""

    def replace_job(self, document: Mapping[str, Any], *, dry_run: bool = False) -> Json:
        """Give a job another spec; :class:`Conflict` if it is not the one that was read."""

    @property
    def removes_checkpoints(self) -> bool:
        """Whether a job's own folder of checkpoints can go with the job."""

    def delete_job(self, name: str, *, checkpoints: Keeping = Keeping.USUAL) -> Json:
        """End a job and forget it; ``checkpoints`` of the answer says where they are and whether they stay."""

    def preview(self, documents: Sequence[Json]) -> Plan:
        """Tell what would be decided if these were submitted now."""

    def explain(self, name: str) -> Json:
        """Say what a job does now and why."""

    def list_history(self, name: str, limit: int) -> list[Json]:
        """List what was decided about a job, oldest first."""

    def list_events(self, name: str = "", since: int = 0) -> list[Json]:
        """List what happened lately to a job, or to all."""

    def read_record(self, since: float) -> "Record":
        """Read what happened since a time, in seconds since the epoch."""

    def list_nodes(self) -> list[Json]:
        """List every GPU by its node."""

    def cordon(self, node: str, gpu: int, reason: str) -> Json:
        """Take a GPU out of service."""

    def uncordon(self, node: str, gpu: int) -> Json:
        """Take that back."""

    def list_settings(self) -> list[Json]:
        """List how the controller is set, and by what."""

    def list_log_nodes(self, name: str) -> list[str]:
        """Name the nodes on which the training of a job has written, or may write now."""

    def read_logs(self, name: str, query: LogQuery) -> Iterator[LogLine]:
        """Yield what the training of a job wrote; if it is followed, until the job has ended."""

    def execute(self, name: str, command: Sequence[str], *, node: str = "") -> int:
        """Run a command where a job has its GPUs, and return its exit status."""
