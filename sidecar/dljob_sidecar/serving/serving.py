"""
The SideCar's server: it answers over HTTP, and makes no connections of its own.

It has three separate listeners. ``/v1`` serves the controller: over mutual TLS on a network, over a
Unix socket on one machine. The inner socket takes the progress of the training process. The health
port is plain and read-only.

A request only passes a value to the agent. Headers, bodies, connections and long polls are limited.
A refused HTTP request gets a :class:`~dljob_wire.messages.Refusal`; other connections are closed.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Iterator, Mapping
from contextlib import suppress
from http import HTTPStatus
from typing import Any, Protocol

from tornado.http1connection import HTTP1Connection
from tornado.httputil import HTTPServerRequest
from tornado.iostream import StreamClosedError
from tornado.web import Application, HTTPError, RequestHandler, stream_request_body

from dljob_sidecar.serving import trust
from dljob_sidecar.settings import Serving
from dljob_wire import codec
from dljob_wire.kinds import Wrong
from dljob_wire.messages import Phase, Post, Refusal, Refused, State, Target, Term

log = logging.getLogger(__name__)

JSON = "application/json"
METRICS = "text/plain; version=0.0.4; charset=utf-8"

STATUS = {
    Refused.MALFORMED: HTTPStatus.BAD_REQUEST,
    Refused.OLDER: HTTPStatus.CONFLICT,
    Refused.CONFLICT: HTTPStatus.CONFLICT,
    Refused.OTHER_INCARNATION: HTTPStatus.CONFLICT,
    Refused.OTHER_INSTALLATION: HTTPStatus.CONFLICT,
    Refused.LEAVING: HTTPStatus.CONFLICT,
    Refused.NOT_AUTHORIZED: HTTPStatus.FORBIDDEN,
    Refused.NOT_FOUND: HTTPStatus.NOT_FOUND,
    Refused.NOT_ALLOWED: HTTPStatus.METHOD_NOT_ALLOWED,
    Refused.TOO_SLOW: HTTPStatus.REQUEST_TIMEOUT,
    Refused.TOO_LARGE: HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    Refused.TOO_MANY: HTTPStatus.SERVICE_UNAVAILABLE,
    Refused.BROKEN: HTTPStatus.INTERNAL_SERVER_ERROR,
}
REMEDIES = {
    Refused.OLDER: "read the state; only a term newer than that of its target is accepted",
    Refused.CONFLICT: "declare it with a generation that was not used yet",
    Refused.OTHER_INCARNATION: "read the state; what was held before this start is released",
    Refused.OTHER_INSTALLATION: "read the state, which names the installation that commands here; end this"
    " container and start it again if it is to be another one",
    Refused.LEAVING: "wait for the next start of the container",
    Refused.NOT_FOUND: "ask for /v1/target, /v1/state, /v1/progress, /healthz or /metrics, each at"
    " its own address",
    Refused.TOO_MANY: "close some of the requests that wait for a change",
}


class Agent(Protocol):
    """The interface of the agent that the server calls."""

    @property
    def incarnation(self) -> str: ...

    @property
    def term(self) -> Term: ...

    @property
    def installation(self) -> str: ...

    @property
    def version(self) -> int: ...

    def state(self) -> State: ...

    def declare(self, target: Target) -> Refused | None: ...

    def post(self, post: Post) -> None: ...

    async def wait_for_change(self, version: int) -> None:
        """Return when the version differs from the given one."""
        ...


class Refusing(Exception):
    """Ends a request with a refusal."""

    def __init__(self, error: Refused, message: str, *, path: str = "", remedy: str = "") -> None:
        super().__init__(message)
        self.error = error
        self.message = message
        self.path = path
        self.remedy = remedy or REMEDIES.get(error, "")


@stream_request_body
class Handler(RequestHandler):
    """The base of all request handlers: limits and refusals."""

    def initialize(self, agent: Agent, serving: Serving, *, listener: trust.Listener) -> None:
        self.agent = agent
        self.serving = serving
        self.listener = listener
        self.is_guest = False
        """True for a client that may only read."""
        self._received = bytearray()
        self._limit: asyncio.TimerHandle | None = None

    def prepare(self) -> None:
        may_declare = self.request.method not in {"GET", "HEAD"}
        reason = self.listener.why_not(self.request, may_declare=may_declare)
        if reason:
            raise Refusing(Refused.NOT_AUTHORIZED, reason, remedy=trust.REMEDY)
        connection = self.request.connection
        assert isinstance(connection, HTTP1Connection)
        self.is_guest = bool(self.listener.why_not(self.request, may_declare=True))
        self.listener.on_welcome(connection.stream, self.is_guest)
        self._limit_body()

    def _limit_body(self) -> None:
        # Check the length before reading the body, because the server must not read a large body.
        length = self.request.headers.get("Content-Length", "")
        # Require ASCII, because ``isdigit`` accepts other digits.
        is_number = length.isascii() and length.isdigit()
        if is_number and int(length[:20]) > self.serving.largest_body:
            raise self._too_large()
        if length or "Transfer-Encoding" in self.request.headers:
            seconds = self.serving.header_seconds

            def refuse() -> None:
                self.set_header("Connection", "close")
                message = f"the body has not come within {seconds:g} s"
                self._refuse(Refusing(Refused.TOO_SLOW, message, remedy="send it at once"))

            self._limit = asyncio.get_running_loop().call_later(seconds, refuse)

    def _lift_limit(self) -> None:
        if self._limit is not None:
            self._limit.cancel()
            self._limit = None

    def on_finish(self) -> None:
        self._lift_limit()

    def on_connection_close(self) -> None:
        self._lift_limit()
        super().on_connection_close()

    def data_received(self, chunk: bytes) -> None:
        if self._finished:  # The request was refused as late or large.
            return
        self._received += chunk
        if len(self._received) > self.serving.largest_body:
            self._received.clear()
            self._refuse(self._too_large())

    def body(self) -> bytes:
        return bytes(self._received)

    def send_state(self) -> None:
        self.set_header("Content-Type", JSON)
        self.finish(codec.encode(self.agent.state()))

    def log_exception(self, typ: Any, value: Any, tb: Any) -> None:
        # Send a client's mistake to the client, and log a fault of the SideCar.
        if isinstance(value, (Refusing, HTTPError, Wrong)):
            log.info("refused %s: %s", self._request_summary(), value)
        elif not isinstance(value, StreamClosedError):
            log.error("could not answer %s", self._request_summary(), exc_info=(typ, value, tb))

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        error = kwargs.get("exc_info", (None, None, None))[1]
        self._refuse(_as_refusing(error, status_code, request=self.request))

    def set_default_headers(self) -> None:
        self.set_header("Server", "dljob-sidecar")
        self.set_header("Cache-Control", "no-store")

    def _too_large(self) -> Refusing:
        message = f"the body is larger than {self.serving.largest_body} bytes"
        return Refusing(Refused.TOO_LARGE, message, remedy="write less")

    def _refuse(self, why: Refusing) -> None:
        term = self.agent.term
        refusal = Refusal(
            error=why.error,
            message=why.message[:4096],
            incarnation=self.agent.incarnation,
            path=why.path[:1024],
            remedy=why.remedy,
            epoch=term.epoch,
            generation=term.generation,
            installation=self.agent.installation,
        )
        self.set_status(STATUS[why.error])
        self.set_header("Content-Type", JSON)
        if why.error is Refused.NOT_ALLOWED:
            self.set_header("Allow", ", ".join(self.methods()))
        self.finish(codec.encode(refusal))

    @classmethod
    def methods(cls) -> list[str]:
        """Return the HTTP methods that this handler implements."""
        return [
            method
            for method in cls.SUPPORTED_METHODS
            if getattr(cls, method.lower()) is not getattr(RequestHandler, method.lower())
        ]


def _as_refusing(
    error: BaseException | None, status: int, *, request: HTTPServerRequest
) -> Refusing:
    if isinstance(error, Refusing):
        return error
    if isinstance(error, Wrong):
        text = str(error).rpartition("; ")[0]
        return Refusing(Refused.MALFORMED, text, path=error.path, remedy=error.remedy)
    if status == HTTPStatus.METHOD_NOT_ALLOWED:
        return Refusing(Refused.NOT_ALLOWED, f"{request.method} is not possible here")
    if isinstance(error, HTTPError) and status < HTTPStatus.INTERNAL_SERVER_ERROR:
        return Refusing(Refused.MALFORMED, error.log_message or error.reason or "a bad request")
    return Refusing(Refused.BROKEN, "a fault of the SideCar, see its log; nothing was changed")


class TargetHandler(Handler):
    """Accepts the target that the controller declares."""

    def put(self) -> None:
        target = codec.decode_target(self.body())
        refused = self.agent.declare(target)
        if refused is not None:
            message = f"{target.term} was not accepted; the newest known is {self.agent.term}"
            raise Refusing(refused, message)
        self.send_state()


class StateHandler(Handler):
    """Returns the state; on request, waits until the state changes."""

    change: asyncio.Future[None] | None = None

    async def get(self) -> None:
        self._lift_limit()
        after = self._whole("after")
        incarnation = self.get_query_argument("incarnation", self.agent.incarnation)
        is_known = (after, incarnation) == (self.agent.version, self.agent.incarnation)
        wait = min(self._seconds("wait"), self.serving.longest_wait_seconds)
        patience = self._seconds("progress")
        is_awaited = not self.listener.is_closing and not self._has_hung_up()
        if is_known and wait > 0 and is_awaited:
            await self._wait(wait, patience)
        if self.listener.is_closing:
            # Close the connection, because further requests would delay the end of the SideCar.
            self.set_header("Connection", "close")
        if wait > 0 and not self._has_hung_up():
            self.listener.note_answer(self._stream(), self.agent.version)
        self.send_state()

    def _stream(self) -> Any:
        connection: Any = self.request.connection
        return connection.stream

    def _has_hung_up(self) -> bool:
        """Return True if the client has disconnected; Tornado reports that only during a wait."""
        stream = self._stream()
        return bool(stream is None or stream.closed())

    async def _wait(self, seconds: float, patience: float) -> None:
        # Count read-only clients apart, so they cannot use up the limit of the controller.
        waiting = self.listener.waiting_guests if self.is_guest else self.listener.waiting
        if len(waiting) >= self.serving.most_waiting:
            raise Refusing(Refused.TOO_MANY, f"{len(waiting)} requests wait already")
        self.change = asyncio.ensure_future(self._wait_for_news(self.agent.state(), patience))
        waiting.add(self.change)
        try:
            await asyncio.wait({self.change}, timeout=seconds)
        finally:
            self.change.cancel()  # asyncio.wait() cancels nothing when its time is up.
            waiting.discard(self.change)

    async def _wait_for_news(self, known: State, patience: float) -> None:
        await self.agent.wait_for_change(known.version)
        essence = known.essence()

        async def wait_for_more_than_progress() -> None:
            while self.agent.state().essence() == essence:
                await self.agent.wait_for_change(self.agent.version)

        # Batch changes, because the controller follows hundreds of SideCars.
        if patience > 0:
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(wait_for_more_than_progress(), patience)

    def on_connection_close(self) -> None:
        super().on_connection_close()
        # The client has disconnected, so free its place for another request.
        if self.change is not None:
            self.change.cancel()

    def _whole(self, name: str) -> int | None:
        text = self.get_query_argument(name, None)
        if text is None:
            return None
        if not (text.isascii() and text.isdigit() and len(text) <= 16):
            why = f"{text[:40]!r} is no version"
            raise Refusing(Refused.MALFORMED, why, path=name, remedy="write a number")
        return int(text)

    def _seconds(self, name: str) -> float:
        text = self.get_query_argument(name, "0")
        try:
            seconds = float(text)
        except ValueError:
            seconds = math.nan
        if not 0 <= seconds < math.inf:
            raise Refusing(
                Refused.MALFORMED, f"{text[:40]!r} is no time", path=name, remedy="write seconds"
            )
        return seconds


class ProgressHandler(Handler):
    """Accepts the progress that the training reports."""

    def post(self) -> None:
        self.agent.post(codec.decode_post(self.body()))
        self.set_status(HTTPStatus.NO_CONTENT)
        self.finish()


class HealthHandler(Handler):
    """Answers the kubelet; an answer shows that the event loop runs."""

    def get(self) -> None:
        self.set_header("Content-Type", "text/plain; charset=utf-8")
        self.finish(f"ok {self.agent.incarnation}\n")


class MetricsHandler(Handler):
    """Serves the metrics for Prometheus."""

    def get(self) -> None:
        self.set_header("Content-Type", METRICS)
        self.finish(write_metrics(self.agent.state()))


class NotFoundHandler(Handler):
    """Answers any other path."""

    def prepare(self) -> None:
        super().prepare()
        raise Refusing(Refused.NOT_FOUND, "there is no such path at this address")


# --- what is behind each listener ---------------------------------------------------------------


def controller_app(agent: Agent, serving: Serving, *, listener: trust.Listener) -> Application:
    paths = {r"/v1/target": TargetHandler, r"/v1/state": StateHandler}
    return _application(paths, agent, serving=serving, listener=listener)


def inner_app(agent: Agent, serving: Serving) -> Application:
    return _application(
        {r"/v1/progress": ProgressHandler}, agent, serving=serving, listener=trust.Listener()
    )


def health_app(agent: Agent, serving: Serving) -> Application:
    paths = {r"/healthz": HealthHandler, r"/metrics": MetricsHandler}
    return _application(paths, agent, serving=serving, listener=trust.Listener())


METRICS_PREFIX = "dljob_sidecar_"

Sample = tuple[str, float]


def write_metrics(state: State) -> str:
    """Return all numeric facts for Prometheus: text, one value per line."""
    lines = []
    for name, text, samples in _families(state):
        lines.append(f"# HELP {METRICS_PREFIX}{name} {text}")
        lines.append(f"# TYPE {METRICS_PREFIX}{name} gauge")
        lines += [f"{METRICS_PREFIX}{name}{labels} {value:.15g}" for labels, value in samples]
    return "\n".join(lines) + "\n"


def _families(state: State) -> Iterator[tuple[str, str, list[Sample]]]:
    phases = [(_label("phase", each.value), float(each is state.phase)) for each in Phase]
    problems = [(_label("name", name), 1.0) for name in sorted({p.name for p in state.problems})]
    yield "phase", "1 for the phase of the SideCar.", phases
    yield "released", "1 if no process of the job is left.", [("", float(state.released))]
    yield "term_epoch", "The leader whose declaration is the newest.", [("", state.epoch)]
    yield "generation", "The newest declaration.", [("", state.generation)]
    running = sum(process.is_running for process in state.processes)
    yield "processes", "Ranks that run.", [("", running)]
    yield "gpus_held", "GPUs that the job may use.", [("", len(state.held))]
    yield "problem", "1 for each problem that the SideCar reports.", problems
    yield from _progress(state)
    yield from _gpus(state)


def _progress(state: State) -> Iterator[tuple[str, str, list[Sample]]]:
    progress, warmth = state.progress, state.warmth
    speed = progress.iterations_per_second
    yield "iteration", "The iteration reported last.", [("", progress.iteration)]
    yield "iterations_per_second", "The speed of the latest iterations.", [("", speed)]
    yield "idle_seconds", "The time since the latest iteration.", [("", progress.idle_seconds)]
    yield "spares_ready", "Spare interpreters that are ready.", [("", warmth.ready)]
    yield (
        "spares_memory_bytes",
        "The memory of the spare interpreters.",
        [("", warmth.memory_bytes)],
    )
    yield (
        "spares_memory_limit_bytes",
        "The most memory that spare interpreters may use.",
        [("", warmth.limit_bytes)],
    )


def _gpus(state: State) -> Iterator[tuple[str, str, list[Sample]]]:
    labels = [_label("gpu", str(gpu.index)) for gpu in state.gpus]
    used = [gpu.memory_used for gpu in state.gpus]
    share = [gpu.utilization for gpu in state.gpus]
    yield "gpu_utilization", "The utilization of the GPU, from 0 to 1.", list(zip(labels, share))
    yield (
        "gpu_memory_used_bytes",
        "The memory of the GPU that any process uses.",
        [*zip(labels, map(float, used))],
    )


def _label(name: str, value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'{{{name}="{escaped}"}}'


def _application(
    paths: Mapping[str, type[Handler]], agent: Agent, *, serving: Serving, listener: trust.Listener
) -> Application:
    given = {"agent": agent, "serving": serving, "listener": listener}
    return Application(
        [(path, handler, given) for path, handler in paths.items()],
        default_handler_class=NotFoundHandler,
        default_handler_args=given,
        # Replace Tornado's log function, which would log a line per poll.
        log_function=lambda handler: log.debug("%s %s", handler.get_status(), handler.request.uri),
    )
