"""Answers and refusals of a backend, as the server of the page shows them."""

from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Final

from dljob.cli.output.streams import harmless, harmless_document
from dljob.client.backend import (
    Away,
    Backend,
    BackendError,
    Json,
    LogQuery,
    NotAllowed,
    NotThere,
    Plan,
)
from dljob.client.jobviews import JobView
from dljob_web.answering import SourceError

MOST_LINES: Final = 200
MOST_BYTES: Final = 1 << 16
"""The limits of a job's output on the page."""

STATUS: Final[Mapping[type[BackendError], int]] = {Away: 503, NotThere: 404, NotAllowed: 403}


def make_harmless(items: list[Json]) -> list[Json]:
    """Escape control characters, as everywhere on the page."""
    return [harmless_document(each) for each in items]


@contextmanager
def telling() -> Iterator[None]:
    """Turn errors of a backend into errors of the page's server."""
    try:
        yield
    except BackendError as error:
        problems = [
            {"document": each.document, "path": each.path, "message": each.line}
            for each in error.complaints
        ]
        usual = 400 if problems else 502
        status = STATUS.get(type(error), usual)
        raise SourceError(
            harmless(str(error)), status=status, problems=harmless_document(problems)
        ) from error


def show_plan(plan: Plan) -> Json:
    shown: Json = harmless_document({"items": plan.effects, "notices": plan.notices})
    return shown


def read_tail(backend: Backend, name: str, *, node: str) -> Json:
    """Read the last lines of a job's output on a node; without a node, on one that it uses."""
    nodes = backend.list_log_nodes(name)
    if not nodes:
        reason = f"{name} has no output yet, or its output was removed with its pods"
        return {"job": name, "nodes": [], "lines": [], "reason": reason}
    used = [part.node for part in JobView.of(backend.get_job(name), backend.home).slices]
    chosen = node or next((each for each in used if each in nodes), nodes[-1])
    if chosen not in nodes:
        raise NotThere(f"{name} has no log of {node}; nodes with one: {', '.join(nodes)}")
    query = LogQuery(node=chosen, lines=MOST_LINES, most_bytes=MOST_BYTES)
    last: deque[bytes] = deque(maxlen=MOST_LINES)
    # A job may have GPUs on a node where its training has not begun to write.
    with suppress(NotThere):
        last.extend(line.text for line in backend.read_logs(name, query))
    text = b"".join(last)[-MOST_BYTES:]
    lines = [each.decode("utf-8", "replace") for each in text.splitlines()]
    reason = "" if lines else f"{name} has written nothing on {chosen} yet"
    told = {"job": name, "node": chosen, "nodes": nodes, "lines": lines, "reason": reason}
    shown: Json = harmless_document(told)
    return shown
