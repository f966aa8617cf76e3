"""Messages to ``dljob mcp`` that are none: each request has one answer, no notification has any, and the server goes on."""

import io
import json
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from dljob.cli.verbs.agents.protocol import Server
from tests.ctl.agents import offered

MISTAKES = (
    "null",
    "[]",
    '[{"jsonrpc": "2.0", "id": 1, "method": "ping"}]',
    "\xff\x00",
    "[" * 100_000,
    '{"jsonrpc": "2.0", "id": ' + "9" * 5000 + ', "method": "ping"}',
    '{"jsonrpc": "2.0", "id": 1.5, "method": "ping"}',
    '{"jsonrpc": "2.0", "id": null, "method": "ping"}',
    '{"jsonrpc": "2.0", "id": {}, "method": "ping"}',
    '{"jsonrpc": "1.0", "id": 1, "method": "ping"}',
    '{"jsonrpc": "2.0", "id": 1}',
    '{"jsonrpc": "2.0", "id": 1, "method": 7}',
    '{"jsonrpc": "2.0", "id": 1, "method": "ping", "params": []}',
    '{"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {"protocolVersion": []}}',
    '{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": ["queue"]}}',
    '{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "x", "arguments": 1}}',
)
"""Each is answered with an error."""

NOTICES = (
    '{"jsonrpc": "2.0", "method": "notifications/cancelled", "params": [1]}',
    '{"jsonrpc": "2.0", "method": "notifications/cancelled", "params": "1"}',
    '{"jsonrpc": "2.0", "method": "notifications/cancelled", "params": null}',
    '{"jsonrpc": "2.0", "method": "notifications/cancelled"}',
    '{"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": [1]}}',
    '{"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": {"a": 1}}}',
    '{"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": true}}',
    '{"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1e999}}',
    '{"jsonrpc": "2.0", "method": ["notifications/cancelled"]}',
    '{"jsonrpc": "2.0"}',
    '{"jsonrpc": "2.0", "id": 1, "result": {}}',
    '{"jsonrpc": "2.0", "id": 1, "error": {"code": 1, "message": "no"}}',
)
"""None is answered."""


def exchange(lines, root):
    server = Server(offered(root), name="dljob", version="1", instructions="")
    target = io.BytesIO()
    server.serve(io.BytesIO(b"".join(each + b"\n" for each in lines)), target)
    return [json.loads(each) for each in target.getvalue().splitlines()]


GREETING = b'{"jsonrpc": "2.0", "id": "hello", "method": "initialize", "params": {"protocolVersion": "2025-11-25"}}'
PING = b'{"jsonrpc": "2.0", "id": "last", "method": "ping"}'


DEEP = (
    '{"jsonrpc": "2.0", "id": "deep", "method": "tools/call", "params": {"name": "preview_job", '
    f'"arguments": {{"document": {"[" * 900}{"]" * 900}}}}}}}'
)


def test_no_mistake_ends_the_server(root):
    lines = [each.encode() for each in (*MISTAKES, *NOTICES, DEEP)]
    greeted, *answers, deep, last = exchange([GREETING, *lines, PING], root)
    assert greeted["id"] == "hello"
    assert len(answers) == len(MISTAKES)
    assert {each["error"]["code"] for each in answers} <= {-32700, -32600, -32602}
    assert (deep["id"], deep["result"]["isError"]) == ("deep", True)
    assert last == {"jsonrpc": "2.0", "id": "last", "result": {}}


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3)
    ),
    max_leaves=8,
)
NAMES = st.sampled_from(
    ["initialize", "ping", "tools/list", "tools/call", "notifications/cancelled", "notifications/x"]
)
PARAMS = JSON | st.fixed_dictionaries(
    {},
    optional={
        "name": st.sampled_from(["queue", "get_job", "preview_job"]) | JSON,
        "arguments": JSON | st.dictionaries(st.sampled_from(["job", "document", "limit"]), JSON),
        "requestId": JSON,
        "protocolVersion": JSON,
    },
)
MESSAGES = st.fixed_dictionaries(
    {"jsonrpc": st.sampled_from(["2.0"]) | JSON},
    optional={"id": JSON, "method": NAMES | JSON, "params": PARAMS},
)


@settings(max_examples=25, deadline=None)
@given(messages=st.lists(MESSAGES | JSON, max_size=8))
def test_whatever_is_sent_each_request_has_one_answer_and_the_server_goes_on(messages):
    lines = [GREETING, *(json.dumps(each).encode() for each in messages), PING]
    answers = exchange(lines, Path("/nowhere"))
    assert all(
        each["jsonrpc"] == "2.0" and ("result" in each) != ("error" in each) for each in answers
    )
    assert all(each.get("error", {}).get("code") != -32603 for each in answers)
    assert {"jsonrpc": "2.0", "id": "last", "result": {}} in answers
    told = [each["id"] for each in answers if each["id"] is not None]
    asked = [
        each["id"]
        for each in messages
        if isinstance(each, dict)
        and each.get("jsonrpc") == "2.0"
        and type(each.get("id")) in (int, str)
    ]
    assert sorted(map(repr, told)) == sorted(map(repr, [*asked, "hello", "last"]))


class Broken:
    """Tools with a mistake of their author in them."""

    def describe(self):
        raise ZeroDivisionError("describe")

    def has(self, name):
        return True

    def plays(self, name):
        return name == "game"

    def call(self, name, arguments, halt):
        raise ZeroDivisionError(name)


def test_a_mistake_of_ours_is_answered_and_written_to_the_log(capfd):
    server = Server(Broken(), name="dljob", version="1", instructions="")
    asked = [
        b'{"jsonrpc": "2.0", "id": 1, "method": "tools/list"}',
        b'{"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": "game"}}',
        b'{"jsonrpc": "2.0", "id": 3, "method": "tools/call", "params": {"name": "question"}}',
    ]
    target = io.BytesIO()
    server.serve(io.BytesIO(b"\n".join([GREETING, *asked, PING, b""])), target)
    answers = {each["id"]: each for each in map(json.loads, target.getvalue().splitlines())}
    assert {answers[identity]["error"]["code"] for identity in (1, 3)} == {-32603}
    assert answers["last"]["result"] == {}
    log = capfd.readouterr().err
    assert "ZeroDivisionError: describe" in log
    assert "ZeroDivisionError: question" in log


class Endless(Broken):
    """Tools that answer with numbers that JSON does not have."""

    def call(self, name, arguments, halt):
        return {"progress": float("nan"), "turns": [{"inSeconds": float("inf")}, 1.5]}


def test_a_number_that_json_does_not_have_is_null_and_costs_no_answer():
    server = Server(Endless(), name="dljob", version="1", instructions="")
    asked = b'{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "job"}}'
    target = io.BytesIO()
    server.serve(io.BytesIO(b"\n".join([GREETING, asked, b""])), target)
    answers = {each["id"]: each for each in map(json.loads, target.getvalue().splitlines())}
    told = {"progress": None, "turns": [{"inSeconds": None}, 1.5]}
    result = answers[1]["result"]
    assert result["structuredContent"] == told
    assert json.loads(result["content"][0]["text"]) == told
