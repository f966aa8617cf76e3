"""
The ``dljob up`` of this machine, as the verbs ask it.

This module asks its socket for all but two things. It reads logs from the files that the server names, and it runs
a command that is to see a job's GPUs here, in the environment that the server names.
"""

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dljob.client.backend import (
    Away,
    BackendError,
    Created,
    JobList,
    Json,
    Keeping,
    LogLine,
    LogQuery,
    NotThere,
    Plan,
    name_briefly,
    name_fully,
    never,
    warn,
)
from dljob.client.jobviews import JobView
from dljob.client.local.following import follow, place_before_end, read_lines
from dljob.client.local.socket_client import SocketClient
from dljob.core.documents.jobnames import full_name
from dljob.local import environments
from dljob.local.pods.logtimes import Begin

if TYPE_CHECKING:
    from dljob.core.recording.record import Record

WATCH_S = 25.0
"""Watch requests are repeated at this interval, so that no verb waits on a dead connection."""

RETRY_S = 1.0
"""The interval of retries while the server does not answer."""

RECORD_S = 90.0
"""The additional time for a record: a long one takes seconds, and the users of a machine get theirs in turn."""

WHAT_IF_S = 60.0
"""The additional time for two futures, which a user gets one after another."""

NOT_FOUND, NOT_EXECUTABLE = 127, 126
"""The exit statuses of a shell for a command that does not exist, or that cannot be executed."""

WORKING_DIRECTORY = "dljob.io/working-directory"


class LocalBackend:
    look_seconds = 1.0
    removes_checkpoints = True

    def __init__(self, socket: Path, *, or_else: str = "") -> None:
        self._client = SocketClient(socket, or_else=or_else)

    def open_another(self) -> "LocalBackend":
        return self  # Nothing is open between two questions.

    def close(self) -> None:
        """Nothing is open between two questions."""

    @cached_property
    def home(self) -> str:
        """The user's name where users share a server; else empty."""
        # The permissions of the socket show whether it is shared, without another request.
        try:
            is_shared = self._client.path.stat().st_mode & 0o077
        except OSError:
            return ""
        home: str = self.about().get("home", "") if is_shared else ""
        return home

    def _named(self, name: str) -> str:
        return name if "/" in name or not self.home else f"{self.home}/{name}"

    def about(self) -> Json:
        return self._get("about")

    # --- jobs

    def list_jobs(self, selector: str = "") -> JobList:
        return _job_list(self._get("jobs", query={"selector": selector}))

    def watch_jobs(self, selector: str, version: str) -> Iterator[JobList]:
        while True:
            query = {"selector": selector, "watch": version, "seconds": WATCH_S}
            try:
                news = _job_list(self._get("jobs", query=query, seconds=WATCH_S))
            except Away:
                # The next server goes on with the same jobs, and sends all of them again.
                time.sleep(RETRY_S)
                continue
            version = news.version
            yield news

    def get_job(self, name: str) -> Json:
        return self._get("jobs", self._named(name))

    def create_jobs(self, documents: Sequence[Json], *, dry_run: bool = False) -> Created:
        query = {"dryRun": "true"} if dry_run else None
        body = {**_list(documents), "environment": environments.record(os.environ)}
        answer = self._client.ask("POST", ("jobs",), query=query, body=body)
        return Created(answer["items"], answer["notices"])

    def replace_job(self, document: Mapping[str, Any], *, dry_run: bool = False) -> Json:
        parts = ("jobs", self._named(full_name(dict(document))))
        query = {"dryRun": "true"} if dry_run else None
        return self._client.ask("PUT", parts, query=query, body=document)

    def delete_job(self, name: str, *, checkpoints: Keeping = Keeping.USUAL) -> Json:
        query = {checkpoints.value: "true"} if checkpoints.value else None
        return self._client.ask("DELETE", ("jobs", self._named(name)), query=query)

    def preview(self, documents: Sequence[Json]) -> Plan:
        answer = self._ask("POST", "plan", body=_list(documents))
        return Plan(answer["items"], answer["notices"])

    def what_if(self, question: Json, *, is_gone: Callable[[], bool] = never) -> Json:  # noqa: ARG002 - the end of the connection ends the play
        answer = self._client.ask(
            "POST", ("what-if",), body=name_fully(question, self._named), seconds=WHAT_IF_S
        )
        return name_briefly(answer, self.home)

    def explain(self, name: str) -> Json:
        return self._get("jobs", self._named(name), "why")

    def list_history(self, name: str, limit: int) -> list[Json]:
        return self._items("jobs", self._named(name), "history", query={"limit": limit})

    # --- the machine

    def list_events(self, name: str = "", since: int = 0) -> list[Json]:
        query = {"since": since, **({"job": self._named(name)} if name else {})}
        return self._items("events", query=query)

    def read_record(self, since: float) -> "Record":
        return _read_record(self._get("record", query={"since": since}, seconds=RECORD_S))

    def list_nodes(self) -> list[Json]:
        return self._items("nodes")

    def cordon(self, node: str, gpu: int, reason: str) -> Json:
        parts = ("nodes", node, "gpus", str(gpu), "cordon")
        return self._ask("PUT", *parts, body={"reason": reason})

    def uncordon(self, node: str, gpu: int) -> Json:
        return self._ask("DELETE", "nodes", node, "gpus", str(gpu), "cordon")

    def list_holds(self) -> dict[str, str]:
        holds: dict[str, str] = self._get("holds")["holds"]
        return holds

    def hold(self, namespace: str, reason: str) -> None:
        self._ask("PUT", "holds", namespace, body={"reason": reason})

    def release(self, namespace: str) -> bool:
        return bool(self._ask("DELETE", "holds", namespace)["wasHeld"])

    def list_settings(self) -> list[Json]:
        return self._items("config")

    # --- what happens here

    def list_log_nodes(self, name: str) -> list[str]:
        job = JobView.of(self.get_job(name), self.home)
        return sorted({*self._find_logs(name, "")[0], *(part.node for part in job.slices)})

    def read_logs(self, name: str, query: LogQuery) -> Iterator[LogLine]:
        begins: dict[str, Begin] = {}
        if query.since is not None:
            answer = self._get("jobs", self._named(name), "logs", query={"since": query.since})
            found = [each for each in answer["items"] if "begin" in each]
            begins = {each["node"]: Begin(**each["begin"]) for each in found}
        if query.most_bytes:
            logs = self._find_logs(name, query.node)[0]
            ends = {node: place_before_end(path, query.most_bytes) for node, path in logs.items()}
            # A line may be as long as the log, so the search for the last lines has no bound.
            return read_lines(logs, None, begins=ends)
        if not query.follow:
            return read_lines(self._find_logs(name, query.node)[0], query.lines, begins=begins)
        find = partial(self._find_logs, name, query.node)
        return follow(find, query.lines, begins=begins, is_over=query.is_over)

    def execute(self, name: str, command: Sequence[str], *, node: str = "") -> int:
        there = self._items("jobs", self._named(name), "surroundings")
        place = next((each for each in there if node in ("", each["node"])), None)
        if place is None:
            nodes = ", ".join(each["node"] for each in there)
            raise NotThere(f"{name} has no GPUs on {node}; name one of {nodes}")
        try:
            status = _run(list(command), place)
        except OSError as error:
            return _tell_not_run(command[0], place["folder"], error=error)
        # The exit status that a shell reports after a signal.
        return status if status >= 0 else 128 - status

    def _find_logs(self, name: str, node: str) -> tuple[dict[str, Path], bool]:
        """Return the logs by node, and whether they are complete."""
        answer = self._get("jobs", self._named(name), "logs")
        logs = {each["node"]: Path(each["path"]) for each in answer["items"]}
        if node and node not in logs:
            known = ", ".join(logs) or "none yet"
            raise NotThere(f"{name} has no log of {node}; nodes with one: {known}")
        return {n: path for n, path in logs.items() if not node or n == node}, answer["ended"]

    # --- asking

    def _get(
        self, *parts: str, query: Mapping[str, object] | None = None, seconds: float = 0.0
    ) -> Json:
        return self._client.ask("GET", parts, query=query, seconds=seconds)

    def _ask(self, method: str, *parts: str, body: object = None) -> Json:
        return self._client.ask(method, parts, body=body)

    def _items(self, *parts: str, query: Mapping[str, object] | None = None) -> list[Json]:
        items: list[Json] = self._get(*parts, query=query)["items"]
        return items


def _run(command: Sequence[str], place: Json) -> int:
    import subprocess  # noqa: PLC0415 - no other verb needs it

    from dljob.client.local import own_terminal  # noqa: PLC0415 - as above

    surroundings = {"cwd": place["folder"], "env": {**_of_this_terminal(), **place["environment"]}}
    if "container" in place:
        command = _in_container(command, place)
        inner = {**place["environment"], **place["container"]["client"]}
        surroundings = {"cwd": "/", "env": {**_of_this_terminal(), **inner}}
    other = _as_user(place)
    if other:
        return own_terminal.run(command, **surroundings, **other)
    return subprocess.run(  # noqa: S603 - it is what the user has asked for
        command, check=False, **surroundings
    ).returncode


def _in_container(command: Sequence[str], place: Json) -> list[str]:
    """Return the command line with which an engine runs a command in the job's container."""
    from dljob.local.containers import engines  # noqa: PLC0415 - no other verb needs it

    container = place["container"]
    terminal = ["--tty"] if os.isatty(0) and os.isatty(1) else []
    variables = engines.given(place["environment"], container["client"])
    return [
        *(container["engine"], "exec", "--interactive", *terminal),
        *(f"--workdir={place['folder']}", *variables, container["name"], *command),
    ]


def _as_user(place: Json) -> dict[str, Any]:
    """Let root run a command of another user's job as that user, whose PATH applies."""
    if os.getuid() != 0:
        return {}
    if "user" not in place:
        raise BackendError(
            "dljob up does not name the owner of the job, so the command would run as root; start"
            " dljob up again with this version"
        )
    user = place["user"]
    if user["uid"] == 0:
        return {}
    return {"user": user["uid"], "group": user["gid"], "extra_groups": user["groups"]}


def _of_this_terminal() -> dict[str, str]:
    """Return the variables of this terminal, which a command needs on top of its job's environment."""
    return {name: os.environ[name] for name in ("TERM", "COLORTERM") if name in os.environ}


def _tell_not_run(command: str, folder: str, *, error: OSError) -> int:
    """Print why a command was not run, and return the exit status of a shell."""
    if error.filename == folder:
        raise BackendError(
            f"{folder}: the folder of the job is missing ({error.strerror})"
        ) from error
    remedy = "check the command, and PATH" if "/" not in command else "check the command"
    warn(f"dljob: {command}: cannot be run ({error.strerror}); {remedy}")
    return NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_EXECUTABLE


def _read_record(answer: Json) -> "Record":
    # Only `dljob record` needs it, and it loads the model of the brain with numpy.
    from dljob.core.recording.record import RecordError, decode  # noqa: PLC0415

    try:
        return decode(answer["lines"], "the record of dljob up")
    except RecordError as error:
        # A newer dljob up may write what this one cannot read.
        raise BackendError(str(error)) from error


def _job_list(answer: Json) -> JobList:
    version = answer["metadata"]["resourceVersion"]
    removed = tuple(answer.get("removed", ()))
    return JobList(answer["items"], version, removed, answer.get("complete", True))


def _list(documents: Sequence[Json]) -> Json:
    """Resolve relative paths of jobs without a ``workdir`` against the current folder."""
    here = str(Path.cwd())
    return {"kind": "DLJobList", "items": [_placed(document, here) for document in documents]}


def _placed(document: Json, here: str) -> Json:
    metadata = document.get("metadata")
    # The server refuses such a document with its own message.
    if not isinstance(metadata, Mapping):
        return document
    annotations = metadata.get("annotations") or {}
    if not isinstance(annotations, Mapping):
        return document
    placed = {**metadata, "annotations": {WORKING_DIRECTORY: here, **annotations}}
    return {**document, "metadata": placed}
