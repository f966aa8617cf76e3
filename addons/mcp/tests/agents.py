"""An agent: the client of the package ``mcp``, with ``dljob mcp`` in this process or in one of its own behind it."""

import json
import os
import subprocess
import sys
from contextlib import contextmanager
from typing import Any

from anyio.from_thread import start_blocking_portal
from mcp import Client, StdioServerParameters, stdio_client

from dljob.client.places import Chosen
from dljob.local.folders import Folders
from dljob_mcp.serving import Agents

LONGEST_S = 240.0
"""A game is a process of its own, which takes long to load where all cores are busy."""


class Agent:
    """Calls tools; this thread waits for the answers."""

    def __init__(self, client, portal):
        self.client = client
        self._portal = portal

    def list_tools(self):
        listed = self._portal.call(self.client.list_tools)
        return {tool.name: tool for tool in listed.tools}

    def begin_call(self, name, **arguments):
        """Begin a call; to cancel the future gives the call up."""
        return self._portal.start_task_soon(self.client.call_tool, name, arguments)

    def call(self, name, **arguments):
        """Call a tool that answers; the text and the structure say the same."""
        result = self.begin_call(name, **arguments).result(LONGEST_S)
        [content] = result.content
        assert not result.is_error, content.text
        assert json.loads(content.text) == result.structured_content
        return result.structured_content

    def refusal(self, name, **arguments):
        """Call a tool that refuses; return its reason."""
        result = self.begin_call(name, **arguments).result(LONGEST_S)
        assert result.is_error, result
        return result.content[0].text


@contextmanager
def _connected(server, **options):
    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(Client(server, **options)) as client,
    ):
        yield Agent(client, portal)


def _command(started_as, options):
    script = f"import sys; sys.argv[0] = {started_as!r}; from dljob.cli.main import main; main()"
    return ["-c", script, "mcp", *map(str, options)]


def _environment(**more):
    return {**os.environ, **more, "PYTHONPATH": os.pathsep.join(sys.path)}


def serving(*options, started_as="dljob", cwd=None, **environment):
    """Serve an agent in a process of its own, as the program of this name."""
    words = _command(started_as, options)
    environment = _environment(**environment)
    server = StdioServerParameters(command=sys.executable, args=words, env=environment, cwd=cwd)
    return _connected(stdio_client(server, errlog=sys.__stderr__ or sys.stderr))


def offering(root, *, traces=None, allow_changes=False):
    """Serve an agent in this process, with the tools in front of the ``dljob up`` of a folder."""
    place = Chosen(folders=Folders(root))
    agents = Agents(place, (traces or root,), allow_changes=allow_changes)
    return _connected(agents.make_server(), raise_exceptions=True)


class Pipes:
    """``dljob mcp`` in a process, whose pipes a test writes and reads itself."""

    def __init__(self, *options, cwd):
        self.process: Any = subprocess.Popen(
            [sys.executable, *_command("dljob", options)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=cwd,
            env=_environment(),
        )
        self._count = 0

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.communicate(timeout=LONGEST_S)

    def send(self, line):
        self.process.stdin.write(line + b"\n")
        self.process.stdin.flush()

    def ask(self, method, **params):
        self._count += 1
        message = {"jsonrpc": "2.0", "id": self._count, "method": method, "params": params}
        self.send(json.dumps(message).encode())

    def read(self):
        return json.loads(self.process.stdout.readline())

    def greet(self):
        info = {"name": "test", "version": "1"}
        self.ask("initialize", protocolVersion="2025-06-18", capabilities={}, clientInfo=info)
        self.send(b'{"jsonrpc": "2.0", "method": "notifications/initialized"}')
        return self.read()["result"]

    def close(self):
        """End the input; return the status of the server, the messages that it still sent, and its log."""
        rest, problems = self.process.communicate(timeout=LONGEST_S)
        return self.process.returncode, [json.loads(line) for line in rest.splitlines()], problems
