"""``dljob mcp`` as a client of the Model Context Protocol drives it, in front of a real ``dljob up``."""

import os

import pytest
import yaml

from tests.ctl.agents import NEWEST, serving
from tests.ctl.running import FIVE
from tests.local.ups import going, replay

CHANGING = {"submit_job", "set_job", "suspend_job", "resume_job", "cancel_job"}


@pytest.mark.processes
def test_what_is_wrong_is_answered_by_the_errors_of_the_protocol(root):
    with serving("--state", root) as client:
        client.send("{")
        unread = client.read()
        assert (unread["id"], unread["error"]["code"]) == (None, -32700)
        client.send('["not", "an", "object"]')
        assert client.read()["error"]["code"] == -32600
        client.send('{"jsonrpc": "2.0", "id": true, "method": "ping"}')
        assert client.read()["error"]["code"] == -32600
        assert client.ask("ping")["result"] == {}
        early = client.ask("tools/list")["error"]
        assert (early["code"], early["message"].partition(";")[2]) == (
            -32600,
            " send initialize first",
        )
        client.greet()
        assert client.ask("resources/list")["error"]["code"] == -32601
        assert client.ask("tools/call", name="no_tool")["error"]["code"] == -32602
        assert client.ask("tools/call", name="queue", arguments=[])["error"]["code"] == -32602
        # A notification is never answered, known or not.
        client.notice("notifications/cancelled", requestId=99)
        client.notice("notifications/roots/list_changed")
        # A client that sends no version, or asks for a page that there is not, has a mistake.
        assert client.ask("initialize")["error"]["code"] == -32602
        assert client.ask("tools/list", cursor="2")["error"]["code"] == -32602
        # Clients of the stateless version of the protocol try this first, and then initialize.
        assert client.ask("server/discover")["error"]["code"] == -32601
        client.send("x" * 4_000_001)
        assert "at most 4,000,000 bytes" in client.read()["error"]["message"]
        assert client.ask("ping")["result"] == {}
        # No controller answers there, which is no error of the protocol.
        assert "dljob up" in client.refusal("list_jobs")
        assert client.close() == (0, b"", b"")


@pytest.mark.story
@pytest.mark.processes
def test_a_version_is_agreed_on_and_tools_that_change_jobs_are_offered_where_that_is_allowed(root):
    offered = {}
    for options, wanted, agreed in (
        ((), "2024-11-05", "2024-11-05"),
        (("--allow-changes",), "2999-01-01", NEWEST),
    ):
        with serving("--state", root, *options) as client:
            greeting = client.greet(wanted)
            assert greeting["protocolVersion"] == agreed
            assert greeting["serverInfo"]["name"] == "dljob"
            tools = client.ask("tools/list")["result"]["tools"]
            offered[options] = {tool["name"]: tool["annotations"]["readOnlyHint"] for tool in tools}
            if not options:
                refused = client.ask("tools/call", name="cancel_job", arguments={"job": "a"})
                assert refused["error"]["code"] == -32602
    assert all(offered[()].values())
    changing = offered["--allow-changes",].keys() - offered[()].keys()
    assert changing == CHANGING
    assert not any(offered["--allow-changes",][name] for name in changing)


@pytest.mark.story
@pytest.mark.processes
def test_an_agent_asks_and_changes_a_real_machine(root):
    state = root / "state"
    trace = root / "five.csv"
    trace.write_text(FIVE, encoding="utf-8")
    with (
        going(state, "--virtual-gpus", 2, "--policy", "fifo") as up,
        serving("--state", state, "--traces", root, "--allow-changes") as client,
    ):
        client.greet()
        document = replay("long", root, iterations=1_000_000, faster=1.0, gpus={"options": [2]})
        other = {**document, "metadata": {"name": "other"}}
        assert "starts on 2 GPUs" in client.call("preview_job", document=document)["text"]
        assert client.call("list_jobs")["jobs"] == []
        assert client.call("submit_job", document=document)["submitted"] == ["long"]
        up.until_phase("long", "Running")
        client.call("submit_job", document=other)
        up.until_phase("other", "Queued")
        ask_about(client)
        ask_what_would_be(client, trace)
        refuse(client, document)

        client.call("set_job", job="other", priority=7)
        assert client.call("get_job", job="other")["document"]["spec"]["priority"] == 7
        assert client.call("suspend_job", job="other")["changed"]
        assert not client.call("suspend_job", job="other")["changed"]
        assert client.call("resume_job", job="other")["changed"]
        assert client.call("cancel_job", job="other")["done"].startswith("cancelled")
        client.call("cancel_job", job="long")
        assert client.close()[0] == 0


def ask_about(client):
    [long] = client.call("list_jobs", phase="Running")["jobs"]
    assert (long["job"], long["gpus"]) == ("long", 2)
    assert client.call("explain_job", job="other")["message"].startswith("waits: needs 2 GPUs")
    assert client.call("job_history", job="long")["decisions"]
    [waiting] = client.call("queue")["queue"]
    assert (waiting["job"], waiting["ahead"] or 0) == ("other", 0)
    [node] = client.call("list_gpus")["nodes"]
    assert [gpu["job"] for gpu in node["gpus"]] == ["long", "long"]
    assert len(client.call("job_logs", job="long", lines=1)["lines"]) <= 1
    report = client.call("report", by="job")
    assert report["rows"][0]["job"] == "long"
    used = report["trained"] + report["lostToChanges"] + report["lostToFailures"]
    rest = report["idleWhileWaiting"] + report["idle"] + report["outOfService"]
    assert used + rest == pytest.approx(report["gpuSeconds"])


def ask_what_would_be(client, trace):
    """Ask for what would be; while that is played, a ping is answered at once."""
    played = client.begin_call("what_if", job="long", another="long")
    assert client.ask("ping")["result"] == {}
    answer = client.answer_to(played)
    now, then = answer["result"]["structuredContent"]["futures"]
    assert len(then["jobs"]) == len(now["jobs"]) + 1

    results = client.call("simulate", trace=str(trace), policies=["fifo"], gpus=8)
    assert [each["policy"] for each in results["results"]] == ["fifo"]
    assert "foresight" in {each["name"] for each in client.call("list_policies")["policies"]}


def refuse(client, document):
    assert client.refusal("explain_job").startswith("job: is missing")
    assert client.refusal("explain_job", job=3) == "job: is no string"
    assert client.refusal("list_gpus", job="a") == "job: there is no such argument; there are: none"
    assert "is none of" in client.refusal("list_jobs", phase="Sleeping")
    assert "is not from 1 to" in client.refusal("job_logs", job="long", lines=0)
    assert "is no such name" in client.refusal("get_job", job="../long")
    assert "there is no such job" in client.refusal("explain_job", job="nothing")
    assert client.refusal("simulate", trace="nowhere.csv").startswith("trace: there is no")
    assert "policy" in client.refusal("what_if", policy="none")
    wrong = yaml.safe_load(yaml.safe_dump(document))
    wrong["spec"]["gpus"] = {"options": [0]}
    for field in ("metadata", "spec"):
        part = {name: each for name, each in document.items() if name != field}
        assert client.refusal("submit_job", document=part).startswith(f"{field}: it is missing")
    assert "metadata" in client.refusal("submit_job", document={**document, "metadata": 3})
    assert "spec.gpus.options" in client.refusal("preview_job", document=wrong)


@pytest.mark.processes
def test_a_preview_starts_no_container(root, monkeypatch):
    calls, engine = root / "calls", root / "bin" / "podman"
    engine.parent.mkdir()
    engine.write_text(f'#!/bin/sh\necho "$@" >> {calls}\nexit 2\n', encoding="utf-8")
    engine.chmod(0o755)
    monkeypatch.setenv("PATH", f"{engine.parent}:{os.environ['PATH']}")
    state = root / "state"
    container = {"engine": "podman", "image": "other/image:latest", "folders": [str(root)]}
    document = replay(
        "boxed", root, iterations=100, faster=1.0, environment={"container": container}
    )
    with going(state, "--virtual-gpus", 1) as up, serving("--state", state) as client:
        client.greet()
        assert "boxed" in client.call("preview_job", document=document)["text"]
        file = root / "boxed.yaml"
        file.write_text(yaml.safe_dump(document), encoding="utf-8")
        assert up("submit", "--dry-run", file).status == 0
        assert not calls.exists()
        # A submission tries the container.
        assert up.submit(document).status == 1
        assert "other/image:latest" in calls.read_text()
