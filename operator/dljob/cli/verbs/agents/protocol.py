"""
The Model Context Protocol over standard input and output: one JSON-RPC message on each line.

The methods are ``initialize``, ``ping``, ``tools/list`` and ``tools/call``, with the errors of JSON-RPC; a server
with tools alone needs no others. Tools are called in other threads (:mod:`dljob.cli.verbs.agents.calls`), so the server
reads on meanwhile: it answers a ``ping``, and a call can be given up. No message ends the server.
"""

import json
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from threading import Lock
from typing import Any, BinaryIO, Final, Protocol, TypeGuard

from dljob.cli.output.forms import without_nan
from dljob.cli.output.streams import harmless
from dljob.cli.verbs.agents.calls import Calls, Halt, Halted, Identity, NotTaken
from dljob.client.backend import Json

VERSIONS: Final = ("2025-11-25", "2025-06-18", "2024-11-05")
"""Newest first. One version is missing, whose batches no client sends."""

LONGEST_MESSAGE: Final = 4_000_000

LONGEST_QUOTE: Final = 100
"""An error repeats this number of characters of a client's name."""

PARSE_ERROR, INVALID_REQUEST, NO_SUCH_METHOD, INVALID_PARAMS = -32700, -32600, -32601, -32602
INTERNAL_ERROR: Final = -32603


class Tools(Protocol):
    """The tools of a server."""

    def describe(self) -> Sequence[Json]:
        """List the tools as ``tools/list`` does."""

    def has(self, name: str) -> bool: ...

    def plays(self, name: str) -> bool:
        """Return true if a tool takes minutes, so that others must not wait for it."""

    def call(self, name: str, arguments: Mapping[str, Any], halt: Halt) -> Json:
        """Call a tool; raises :class:`ToolRefused`, or :class:`Halted` if the client gives the call up."""


class ToolRefused(Exception):
    """A tool refuses a request; ``str()`` names the reason and the remedy."""


class Wrong(Exception):
    """A request is answered with an error of the protocol."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class Server:
    """Answers one client until its input ends."""

    def __init__(self, tools: Tools, *, name: str, version: str, instructions: str) -> None:
        self._tools = tools
        self._greeting = {
            "capabilities": {"tools": {"listChanged": False}},
            "serverInfo": {"name": name, "version": version},
            "instructions": instructions,
        }

    def serve(self, source: BinaryIO, target: BinaryIO) -> None:
        """Answer until the input ends, and all questions before that are answered; games end with the input."""
        writing = Lock()

        def send(message: Json) -> None:
            line = json.dumps({"jsonrpc": "2.0", **message}, allow_nan=False).encode()
            # Several threads answer, and the client takes each line for one message.
            with writing:
                target.write(line + b"\n")
                target.flush()

        with Calls() as calls:
            session = _Session(self._tools, self._greeting, calls, send)
            while line := source.readline(LONGEST_MESSAGE):
                if not line.strip():
                    continue
                if not line.endswith(b"\n") and len(line) == LONGEST_MESSAGE:
                    _skip_rest(source)
                    most = f"a message has at most {LONGEST_MESSAGE:,} bytes"
                    answer: Json | None = _error(None, Wrong(INVALID_REQUEST, most))
                else:
                    answer = session.answer(line)
                if answer is not None:
                    send(answer)


class _Session:
    """The messages of one client, answered one by one."""

    def __init__(
        self, tools: Tools, greeting: Json, calls: Calls, send: Callable[[Json], None]
    ) -> None:
        self._tools = tools
        self._greeting = greeting
        self._calls = calls
        self._send = send
        self._is_initialized = False

    def answer(self, line: bytes) -> Json | None:
        """Return the answer to a message; ``None`` if it needs none or comes later."""
        identity: Identity | None = None
        try:
            message = _read(line)
            if "id" not in message:
                self._take_notice(message)
                return None
            identity = _identity_of(message)
            result = self._result_of(identity, message)
        except Wrong as error:
            return _error(identity, error)
        except Exception as error:  # noqa: BLE001 - a mistake of ours costs one answer, and not the server
            traceback.print_exc(file=sys.stderr)
            return _error(identity, _mistake(error))
        return None if result is None else {"id": identity, "result": result}

    def _result_of(self, identity: Identity, message: Json) -> Json | None:
        method = message.get("method")
        if method is None and ("result" in message or "error" in message):
            return None  # A response, and this server asks nothing.
        if not isinstance(method, str):
            raise Wrong(INVALID_REQUEST, "method: is missing, or is no text")
        params = message.get("params", {})
        if not isinstance(params, dict):
            raise Wrong(INVALID_PARAMS, "params: is no object")
        if method == "ping":
            return {}
        if method == "initialize":
            return self._greet(params)
        if method not in ("tools/list", "tools/call"):
            quoted = _quoted(method)
            raise Wrong(NO_SUCH_METHOD, f"there is no method {quoted}; this server has tools alone")
        if not self._is_initialized:
            raise Wrong(INVALID_REQUEST, "the session is not initialized; send initialize first")
        if method == "tools/list":
            return self._list_tools(params)
        self._begin_call(identity, params)
        return None

    def _greet(self, params: Json) -> Json:
        wanted = params.get("protocolVersion")
        if not isinstance(wanted, str):
            raise Wrong(INVALID_PARAMS, "protocolVersion: is missing, or is no text")
        self._is_initialized = True
        agreed = wanted if wanted in VERSIONS else VERSIONS[0]
        return {"protocolVersion": agreed, **self._greeting}

    def _list_tools(self, params: Json) -> Json:
        if params.get("cursor") is not None:
            raise Wrong(INVALID_PARAMS, "cursor: is not from this server, which lists all at once")
        return {"tools": list(self._tools.describe())}

    def _begin_call(self, identity: Identity, params: Json) -> None:
        name, arguments = params.get("name"), params.get("arguments", {})
        if not isinstance(name, str) or not self._tools.has(name):
            raise Wrong(INVALID_PARAMS, f"name: there is no tool {_quoted(name)}; see tools/list")
        if not isinstance(arguments, dict):
            raise Wrong(INVALID_PARAMS, "arguments: is no object")

        def act(halt: Halt) -> None:
            self._call(identity, halt, name=name, arguments=arguments)

        try:
            self._calls.begin(identity, act, plays=self._tools.plays(name))
        except NotTaken as error:
            raise Wrong(INVALID_REQUEST, str(error)) from error

    def _call(self, identity: Identity, halt: Halt, *, name: str, arguments: Json) -> None:
        """Call a tool in a thread, and answer unless the client gives the call up."""
        mistake: Exception | None = None
        try:
            answer = {"id": identity, "result": self._call_tool(halt, name, arguments)}
        except Halted:
            # The client gave it up, so nothing is sent.
            answer = {}
        except Exception as error:  # noqa: BLE001 - the client waits for an answer, and the log has the rest
            mistake, answer = error, _error(identity, _mistake(error))
        # Finished before the answer is sent, because the
        # client may use the id again once it has it.
        if self._calls.finish(identity, halt):
            self._send(answer)
        if mistake is not None:
            # After the answer, so that the client does not wait; the future hands it to the log.
            raise mistake

    def _call_tool(self, halt: Halt, name: str, arguments: Json) -> Json:
        try:
            # A job may say NaN of itself, and a call whose answer cannot be sent would never end for the client.
            answer = without_nan(self._tools.call(name, arguments, halt))
        except ToolRefused as refused:
            # Not an error of the protocol: the agent is to read the reason and to do better.
            reason = harmless(str(refused), keeps="\n")
            return {"content": [{"type": "text", "text": reason}], "isError": True}
        text = json.dumps(answer, ensure_ascii=False)
        return {"content": [{"type": "text", "text": text}], "structuredContent": answer}

    def _take_notice(self, message: Json) -> None:
        """
        Take a notification, which is never answered; one that is wrong is ignored.

        A call that waits is not begun, and a game that runs is ended. A question or a change that runs goes on to
        its end, since half of it would be worse; its answer is dropped.
        """
        params = message.get("params")
        if message.get("method") == "notifications/cancelled" and isinstance(params, dict):
            identity = params.get("requestId")
            if _is_identity(identity):
                self._calls.halt(identity)


def _read(line: bytes) -> Json:
    try:
        message = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise Wrong(PARSE_ERROR, f"the line is not JSON: {error}") from error
    if not isinstance(message, dict) or message.get("jsonrpc") != "2.0":
        raise Wrong(INVALID_REQUEST, 'the message is no object with "jsonrpc": "2.0"')
    return message


def _identity_of(message: Json) -> Identity:
    identity: object = message["id"]
    if not _is_identity(identity):
        raise Wrong(INVALID_REQUEST, "id: is neither a whole number nor a text")
    return identity


def _is_identity(value: object) -> TypeGuard[Identity]:
    # A bool is an int to Python, and not to JSON.
    return type(value) in (int, str)


def _quoted(value: object) -> str:
    text = repr(value)
    return text if len(text) <= LONGEST_QUOTE else f"{text[:LONGEST_QUOTE]}…"


def _mistake(error: Exception) -> Wrong:
    return Wrong(INTERNAL_ERROR, f"{type(error).__name__}: {error}")


def _error(identity: Identity | None, error: Wrong) -> Json:
    return {"id": identity, "error": {"code": error.code, "message": str(error)}}


def _skip_rest(source: BinaryIO) -> None:
    while (part := source.readline(LONGEST_MESSAGE)) and not part.endswith(b"\n"):
        pass
