"""A DLJob document with its status, parsed for display."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple

from dljob.client.backend import Json
from dljob.control.reporting import formatting
from dljob.control.reporting.formatting import in_ranges
from dljob.core.documents.jobnames import full_name, manager_of

__all__ = ["CANCELLING", "FINAL", "PHASES", "JobView", "Slice", "in_ranges", "read_time"]

PHASES = (
    *("Submitted", "Queued", "Initialized", "Running", "Adjusting", "Suspended"),
    *("Completed", "Failed"),
)
CANCELLING = "Cancelling"
FINAL = frozenset({"Completed", "Failed"})


class Slice(NamedTuple):
    """The GPUs of a job on one node."""

    node: str
    gpus: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.node}[{in_ranges(self.gpus)}]"


@dataclass(frozen=True, kw_only=True)
class JobView:
    """A job for display."""

    name: str
    phase: str
    message: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    priority: int = 0
    gpus: int = 0
    gpu_type: str = ""
    slices: tuple[Slice, ...] = ()
    iteration: int = 0
    iterations_total: float | None = None
    fraction: float | None = None
    speed: float = 0.0
    eta: float | None = None
    """In seconds."""
    eta_between: tuple[float, float | None] | None = None
    """Lower and upper bound; the upper one may be unknown. Of a guess only these are known."""
    ahead: int | None = None
    """The number of waiting jobs that start before it; ``None`` if unknown or if it does not wait."""
    expected_start: float | None = None
    start_unknown_because: str = ""
    reshapes: int = 0
    submitted_at: float | None = None
    started_at: float | None = None
    finished_at: float | None = None
    version: str = ""
    document: Json = field(default_factory=dict, compare=False, repr=False)

    @property
    def is_final(self) -> bool:
        return self.phase in FINAL

    @property
    def owner(self) -> str:
        """The owner, if the job belongs to another user and only its outline is shown; else empty."""
        owner: str = self.status.get("owner", "")
        return owner

    @property
    def is_suspended(self) -> bool:
        return bool(self.spec.get("suspend", False))

    @property
    def status(self) -> Mapping[str, Any]:
        status: Mapping[str, Any] = self.document.get("status", {})
        return status

    @property
    def spec(self) -> Mapping[str, Any]:
        spec: Mapping[str, Any] = self.document.get("spec", {})
        return spec

    @classmethod
    def of(cls, document: Json, home: str = "") -> "JobView":
        """Parse a document of the server; names omit the namespace ``home``."""
        metadata, status = document["metadata"], document.get("status", {})
        allocation, progress = status.get("allocation", {}), status.get("progress", {})
        queue = status.get("queue", {})
        gone = status.get("cancelled") or metadata.get("deletionTimestamp")
        manager = manager_of(document)
        return cls(
            name=full_name(document, home),
            phase=CANCELLING if gone else status.get("phase", "Submitted"),
            message=status.get("message") or (f"is managed by {manager}" if manager else ""),
            labels=metadata.get("labels") or {},
            priority=document["spec"].get("priority", 0),
            gpus=allocation.get("gpus", 0),
            gpu_type=allocation.get("gpuType", ""),
            slices=tuple(
                Slice(part["name"], tuple(part["gpuIds"])) for part in allocation.get("nodes", ())
            ),
            iteration=progress.get("iteration", 0),
            iterations_total=progress.get("iterationsTotal"),
            fraction=progress.get("fraction"),
            speed=progress.get("iterationsPerSecond", 0.0),
            eta=progress.get("etaSeconds"),
            eta_between=_bounds(progress),
            ahead=queue.get("ahead"),
            expected_start=read_time(queue.get("expectedStart")),
            start_unknown_because=queue.get("unknownBecause", ""),
            reshapes=status.get("reshapes", 0),
            submitted_at=read_time(metadata.get("creationTimestamp")),
            started_at=read_time(status.get("startedAt")),
            finished_at=read_time(status.get("finishedAt")),
            version=metadata.get("resourceVersion", ""),
            document=document,
        )


def _bounds(progress: Mapping[str, Any]) -> tuple[float, float | None] | None:
    low = progress.get("etaLowSeconds")
    return None if low is None else (low, progress.get("etaHighSeconds"))


def read_time(text: str | None) -> float | None:
    """Read a time of a document, in seconds since the epoch."""
    return datetime.fromisoformat(text).timestamp() if text else None


def eta_of(job: JobView, to: str = "") -> str:
    """Write the expected remaining time; with a word ``to``, its bounds."""
    return formatting.NOTHING if job.is_final else formatting.eta(job.eta, job.eta_between, to=to)


def progress_of(job: JobView) -> str:
    return formatting.progress(job.status)
