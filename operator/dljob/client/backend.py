"""
The interface between the verbs and the place where jobs run: a cluster or one machine.

Jobs, nodes and all else travel as the documents that ``-o json`` prints, for they are what every
place has in common. :mod:`dljob.client.local.local_backend` asks the ``dljob up`` of this machine, and
:mod:`dljob.client.cluster.backend` the API server of a Kubernetes cluster.
"""

import enum
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    # Everyday verbs must not load the model of the brain and, with it, numpy.
    from dljob.core.recording.record import Record

Json = dict[str, Any]


class Complaint(NamedTuple):
    """A problem of one of several documents."""

    document: int
    """The index of the document."""
    line: str
    """Field, problem and remedy."""
    path: str = ""
    """The path of the field in the document."""


class BackendError(Exception):
    """The place refuses or fails; ``str()`` is one line that names the remedy."""

    def __init__(self, message: str, complaints: Sequence[Complaint] = ()) -> None:
        super().__init__(message)
        self.complaints = tuple(complaints)


class Away(BackendError):
    """No server answers there."""


class NotThere(BackendError):
    """There is no such job, node or GPU."""


class NotAllowed(BackendError):
    """The user lacks a right, or the place forbids the request to all users."""


class Conflict(BackendError):
    """Another program changed the object meanwhile, or its state does not allow the request."""


class JobList(NamedTuple):
    """Jobs at a version of the list."""

    items: list[Json]
    version: str = ""
    removed: tuple[str, ...] = ()
    """When watching: jobs that no longer exist."""
    complete: bool = True
    """When watching: all jobs are in ``items``, so the reader forgets any others."""


class Created(NamedTuple):
    """Jobs that were submitted, or in a dry run would be."""

    items: list[Json]
    notices: list[str]
    """Notes about fields that have no effect in this place."""


class Plan(NamedTuple):
    """The decision that would follow a submission."""

    effects: list[Json]
    notices: list[str]
    tells_others: bool = True
    """True if ``effects`` include those on all other jobs."""


class Keeping(enum.Enum):
    """The fate of the checkpoints in a job's own folder when the job is cancelled."""

    USUAL = ""
    """Remove them, but keep those of a Completed job."""
    KEEP = "keepCheckpoints"
    REMOVE = "removeCheckpoints"


def warn(line: str) -> None:
    """Print a line that is not data, to standard error."""
    sys.stderr.write(f"{line}\n")


def never() -> bool:
    """Follow a log until the job has ended."""
    return False


def name_fully(question: Any, find: Callable[[str], str]) -> Any:
    """Give the jobs of a question about the future their names with the namespace."""
    if not isinstance(question, dict):
        return question
    named = {field: question.get(field) for field in ("job", "another")}
    full = {field: find(name) for field, name in named.items() if name and isinstance(name, str)}
    return {**question, **full}


def name_briefly(answer: Json, home: str) -> Json:
    """Leave the namespace ``home`` out of the jobs' names in two futures."""
    for job in (job for future in answer["futures"] for job in future["jobs"]):
        job["job"] = job["job"].removeprefix(f"{home}/")
    return answer


class LogQuery(NamedTuple):
    """A selection of a job's output."""

    node: str = ""
    """Empty: all nodes."""
    lines: int | None = None
    """The number of last lines; ``None``: all."""
    follow: bool = False
    since: float | None = None
    """Only lines of the last ``since`` seconds; ``None``: all."""
    is_over: Callable[[], bool] = never
    """Following ends once this returns true."""
    most_bytes: int = 0
    """When not following: about this number of bytes at the end suffices; 0: all bytes of the lines."""


class LogLine(NamedTuple):
    """A line that the training wrote, with its end."""

    node: str
    text: bytes


class Backend(Protocol):
    """A place where jobs run. Every method raises :class:`BackendError`."""

    @property
    def home(self) -> str:
        """The namespace whose jobs have names without a namespace; empty if none."""

    @property
    def look_seconds(self) -> float:
        """The interval at which a verb may read everything without loading the place."""

    def open_another(self) -> "Backend":
        """Open another connection to the same place, such as for another thread."""

    def close(self) -> None:
        """Close all connections."""

    def about(self) -> Json:
        """Describe the controller."""

    def list_jobs(self, selector: str = "") -> JobList:
        """List the jobs whose labels are selected."""

    def watch_jobs(self, selector: str, version: str) -> Iterator[JobList]:
        """Yield changes after this version, also across outages of the server."""

    def get_job(self, name: str) -> Json:
        """Return the document of a job."""

    def create_jobs(self, documents: Sequence[Json], *, dry_run: bool = False) -> Created:
        """Submit jobs, all or none."""

    def replace_job(self, document: Mapping[str, Any], *, dry_run: bool = False) -> Json:
        """Replace the spec of a job; :class:`Conflict` if the job changed since it was read."""

    @property
    def removes_checkpoints(self) -> bool:
        """True if cancelling a job can remove its own folder of checkpoints."""

    def delete_job(self, name: str, *, checkpoints: Keeping = Keeping.USUAL) -> Json:
        """End and delete a job; ``checkpoints`` of the answer has their path and whether they are kept."""

    def preview(self, documents: Sequence[Json]) -> Plan:
        """Return the decision that would follow if these jobs were submitted now."""

    def what_if(self, question: Json, *, is_gone: Callable[[], bool] = never) -> Json:
        """
        Play the future of all jobs as it is, and with the differences of a question: ``futures`` and ``notes``.

        docs/reference/page-api.md describes questions and answers. ``is_gone`` ends the play.
        """

    def explain(self, name: str) -> Json:
        """Explain what a job does now."""

    def list_history(self, name: str, limit: int) -> list[Json]:
        """List the decisions about a job, oldest first."""

    def list_events(self, name: str = "", since: int = 0) -> list[Json]:
        """List recent events of a job, or of all jobs."""

    def read_record(self, since: float) -> "Record":
        """Read the record since a time, in seconds since the epoch."""

    def list_nodes(self) -> list[Json]:
        """List every GPU by its node."""

    def cordon(self, node: str, gpu: int, reason: str) -> Json:
        """Take a GPU out of service."""

    def uncordon(self, node: str, gpu: int) -> Json:
        """Put the GPU back into service."""

    def list_holds(self) -> dict[str, str]:
        """Return the namespaces whose jobs are on hold, with the reasons; ``*``: all."""

    def hold(self, namespace: str, reason: str) -> None:
        """Let nothing be decided about the jobs of a namespace, or about all (``*``)."""

    def release(self, namespace: str) -> bool:
        """End a hold; return False if there was none."""

    def list_settings(self) -> list[Json]:
        """List the settings of the controller with their origins."""

    def list_log_nodes(self, name: str) -> list[str]:
        """Name the nodes that have or may get output of a job."""

    def read_logs(self, name: str, query: LogQuery) -> Iterator[LogLine]:
        """Yield the output of a job; when following, until the job has ended."""

    def execute(self, name: str, command: Sequence[str], *, node: str = "") -> int:
        """Run a command with the GPUs of a job, and return its exit status."""
