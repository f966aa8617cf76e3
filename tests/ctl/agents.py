"""A client of the Model Context Protocol, and ``dljob mcp`` in a process of its own behind it."""

import json
import os
import subprocess
import sys
import threading
from contextlib import contextmanager

from dljob.cli.verbs.agents.offering import PlacedTools
from dljob.client.places import Chosen
from dljob.local.folders import Folders

LONGEST_S = 240.0
"""A game is a process of its own, which takes long to load where all cores are busy."""

NEWEST = "2025-11-25"


class Client:
    """Speaks the protocol with a server in a process of its own."""

    def __init__(self, process):
        self.process = process
        self._count = 0
        self._early = {}

    def send(self, text):
        self.process.stdin.write(text.encode() + b"\n")
        self.process.stdin.flush()

    def read(self):
        """Read the next message, in the order in which the server sends them."""
        timer = threading.Timer(LONGEST_S, self.process.kill)
        timer.start()
        try:
            line = self.process.stdout.readline()
        finally:
            timer.cancel()
        assert line, f"the server has ended: {self.process.stderr.read().decode()}"
        message = json.loads(line)
        assert message.pop("jsonrpc") == "2.0"
        return message

    def begin(self, method, **params):
        self._count += 1
        message = {"jsonrpc": "2.0", "id": self._count, "method": method, "params": params}
        self.send(json.dumps(message))
        return self._count

    def begin_call(self, name, **arguments):
        return self.begin("tools/call", name=name, arguments=arguments)

    def answer_to(self, identity):
        """Read until this answer has come; others that come before it are kept."""
        while identity not in self._early:
            message = self.read()
            self._early[message["id"]] = message
        return self._early.pop(identity)

    def ask(self, method, **params):
        return self.answer_to(self.begin(method, **params))

    def notice(self, method, **params):
        self.send(json.dumps({"jsonrpc": "2.0", "method": method, "params": params}))

    def greet(self, version=NEWEST):
        info = {"name": "test", "version": "1"}
        greeting = self.ask("initialize", protocolVersion=version, capabilities={}, clientInfo=info)
        self.notice("notifications/initialized")
        return greeting["result"]

    def call(self, name, **arguments):
        """Call a tool that answers; the text and the structure say the same."""
        result = self.ask("tools/call", name=name, arguments=arguments)["result"]
        [content] = result["content"]
        assert not result.get("isError"), content["text"]
        assert json.loads(content["text"]) == result["structuredContent"]
        return result["structuredContent"]

    def refusal(self, name, **arguments):
        """Call a tool that refuses; return its reason."""
        result = self.ask("tools/call", name=name, arguments=arguments)["result"]
        assert result.get("isError"), result
        return result["content"][0]["text"]

    def close(self):
        """End the input; return the status of the server, what else it sent, and its log."""
        rest, problems = self.process.communicate(timeout=LONGEST_S)
        return self.process.returncode, rest, problems


@contextmanager
def serving(*options, started_as="dljob", cwd=None, **environment):
    """Serve with these options, as the program of this name."""
    script = f"import sys; sys.argv[0] = {started_as!r}; from dljob.cli.main import main; main()"
    process = subprocess.Popen(
        [sys.executable, "-c", script, "mcp", *map(str, options)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=cwd,
        env={**os.environ, **environment, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    try:
        yield Client(process)
    finally:
        process.kill()
        process.communicate(timeout=LONGEST_S)


def offered(root, *, traces=None, allow_changes=False):
    """The tools in front of a place at which no server answers."""
    place = Chosen(folders=Folders(root))
    return PlacedTools(place, (traces or root,), allow_changes=allow_changes)
