"""The JSON of the server's answers: jobs as DLJob documents, GPUs, Events, the history, a plan."""

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from dljob.control.deciding.futures import show_placement, without_nothing
from dljob.control.judging.progress import counted
from dljob.control.reporting.events import event_name
from dljob.control.reporting.reasons import Outlook
from dljob.control.settings import Setting
from dljob.control.situation.ports import Entry
from dljob.control.situation.status_documents import Json, write_status, write_time
from dljob.core.documents.jobschema import API_VERSION, KIND
from dljob.core.model import Phase
from dljob.core.recording.record import Decided, Happened
from dljob.local import environments
from dljob.local.events import JobEvent
from dljob.store.tables import GpuRow

RENEWED = frozenset({"creationTimestamp", "generation", "resourceVersion"})
"""The metadata that the controller writes, in place of any values of the user."""


def job_document(
    entry: Entry,
    *,
    version: str,
    now: float,
    outlook: Outlook | None = None,
    environment: Mapping[str, str] = MappingProxyType({}),
    queue: Json | None = None,
) -> Json:
    """Show a job as its user wrote it, with its status and, if known, its expected course."""
    given = entry.document.get("metadata", {})
    metadata = {
        **{name: value for name, value in given.items() if name not in RENEWED},
        "creationTimestamp": write_time(entry.status.submitted_at),
        "generation": entry.spec_generation,
        "resourceVersion": version,
    }
    # With the GPU time since the last count.
    recorded = counted(entry.status, now, is_held=bool(entry.status.pods), every=0.0)
    remaining = None
    if outlook is not None and recorded.placement is not None:
        remaining = outlook.remaining(entry.job.id)
    status = write_status(recorded, remaining=remaining)
    if outlook is not None and (entry.cancelled or recorded.phase is Phase.SUSPENDED):
        # The recorded message says only how the job got into this state.
        status["message"] = outlook.sentence(entry)
    status["environment"] = environments.shown(environment)
    if queue is not None and not (recorded.is_final or entry.cancelled):
        status["queue"] = queue
    if entry.cancelled:
        status["cancelled"] = True
    if entry.problem:
        status["message"] = entry.problem
        status["unreadable"] = True
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": metadata,
        "spec": entry.document.get("spec", {}),
        "status": status,
    }


def outline(document: Json, owner: str) -> Json:
    """Keep the parts of a job that all users may see: name, owner, phase and GPUs."""
    kept = ("name", "namespace", "creationTimestamp", "generation", "resourceVersion")
    metadata = {name: document["metadata"][name] for name in kept if name in document["metadata"]}
    status = {
        name: document["status"][name]
        for name in ("phase", "allocation", "cancelled")
        if name in document["status"]
    }
    return {**document, "metadata": metadata, "spec": {}, "status": {**status, "owner": owner}}


def list_document(version: str, items: Iterable[Json]) -> Json:
    """Show several jobs as a list of Kubernetes."""
    metadata = {"resourceVersion": version}
    return {
        "apiVersion": API_VERSION,
        "kind": f"{KIND}List",
        "metadata": metadata,
        "items": list(items),
    }


def node_documents(rows: Iterable[GpuRow]) -> list[Json]:
    nodes: dict[str, Json] = {}
    for row in rows:
        node = nodes.setdefault(row.node, {"name": row.node, "gpuType": row.gpu_type, "gpus": []})
        node["gpus"].append(
            without_nothing(
                index=row.gpu,
                uuid=row.uuid,
                state=row.state.value,
                job=row.job,
                worker=row.worker,
                since=write_time(row.since),
                reason=row.reason,
            )
        )
    return list(nodes.values())


def event_document(event: JobEvent) -> Json:
    return {
        "number": event.number,
        "at": write_time(event.at),
        "job": event.job,
        "type": "Warning" if event.warning else "Normal",
        "reason": event.reason,
        "message": event.message,
    }


def earlier_event_document(line: Decided | Happened) -> Json:
    """Show an Event of a former controller, which only the history holds."""
    if isinstance(line, Decided):
        kind, reason, message = "Normal", event_name(line.step), line.sentence
    else:
        kind, reason, message = "Warning" if line.warning else "Normal", line.name, line.message
    return {
        "number": 0,
        "at": write_time(line.at),
        "job": line.job,
        "type": kind,
        "reason": reason,
        "message": message,
    }


def history_document(line: Decided | Happened) -> Json:
    """Show a line of the history."""
    if isinstance(line, Happened):
        return without_nothing(
            at=write_time(line.at),
            job=line.job,
            kind=line.name[:1].lower() + line.name[1:],
            message=line.message,
            generation=0,
        )
    return without_nothing(
        at=write_time(line.at),
        job=line.job,
        kind=line.step,
        message=line.sentence,
        cause=line.cause,
        forJob=line.for_job,
        old=show_placement(line.old),
        new=show_placement(line.new),
        generation=line.generation,
        costSeconds=line.cost_seconds,
        how=line.how,
    )


def setting_document(setting: Setting) -> Json:
    return {
        "name": setting.path,
        "value": setting.value,
        "origin": setting.origin,
        "description": setting.documentation,
    }
