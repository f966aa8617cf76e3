"""``dljob mcp`` in front of a real ``dljob up``."""

import os

import pytest
import yaml

from addons.mcp.tests.agents import serving
from tests.ctl.running import FIVE
from tests.local.ups import going, replay


@pytest.mark.story
@pytest.mark.processes
def test_an_agent_asks_and_changes_a_real_machine(root):
    state = root / "state"
    trace = root / "five.csv"
    trace.write_text(FIVE, encoding="utf-8")
    with (
        going(state, "--virtual-gpus", 2, "--policy", "fifo") as up,
        serving("--state", state, "--traces", root, "--allow-changes") as agent,
    ):
        document = replay("long", root, iterations=1_000_000, faster=1.0, gpus={"options": [2]})
        other = {**document, "metadata": {"name": "other"}}
        assert "starts on 2 GPUs" in agent.call("preview_job", document=document)["text"]
        assert agent.call("list_jobs")["jobs"] == []
        assert agent.call("submit_job", document=document)["submitted"] == ["long"]
        up.until_phase("long", "Running")
        agent.call("submit_job", document=other)
        up.until_phase("other", "Queued")
        ask_about(agent)
        ask_what_would_be(agent, trace)
        refuse(agent, document)

        agent.call("set_job", job="other", priority=7)
        assert agent.call("get_job", job="other")["document"]["spec"]["priority"] == 7
        assert agent.call("suspend_job", job="other")["changed"]
        assert not agent.call("suspend_job", job="other")["changed"]
        assert agent.call("resume_job", job="other")["changed"]
        assert agent.call("cancel_job", job="other")["done"].startswith("cancelled")
        agent.call("cancel_job", job="long")


def ask_about(agent):
    [long] = agent.call("list_jobs", phase="Running")["jobs"]
    assert (long["job"], long["gpus"]) == ("long", 2)
    assert agent.call("explain_job", job="other")["message"].startswith("waits: needs 2 GPUs")
    assert agent.call("job_history", job="long")["decisions"]
    [waiting] = agent.call("queue")["queue"]
    assert (waiting["job"], waiting["ahead"] or 0) == ("other", 0)
    [node] = agent.call("list_gpus")["nodes"]
    assert [gpu["job"] for gpu in node["gpus"]] == ["long", "long"]
    assert len(agent.call("job_logs", job="long", lines=1)["lines"]) <= 1
    report = agent.call("report", by="job")
    assert report["rows"][0]["job"] == "long"
    used = report["trained"] + report["lostToChanges"] + report["lostToFailures"]
    rest = report["idleWhileWaiting"] + report["idle"] + report["outOfService"]
    assert used + rest == pytest.approx(report["gpuSeconds"])


def ask_what_would_be(agent, trace):
    now, then = agent.call("what_if", job="long", another="long")["futures"]
    assert len(then["jobs"]) == len(now["jobs"]) + 1
    results = agent.call("simulate", trace=str(trace), policies=["fifo"], gpus=8)
    assert [each["policy"] for each in results["results"]] == ["fifo"]
    assert "foresight" in {each["name"] for each in agent.call("list_policies")["policies"]}


def refuse(agent, document):
    assert "there is no such job" in agent.refusal("explain_job", job="nothing")
    assert agent.refusal("simulate", trace="nowhere.csv").startswith("trace: there is no")
    assert "policy" in agent.refusal("what_if", policy="none")
    wrong = {**document, "spec": {**document["spec"], "gpus": {"options": [0]}}}
    for field in ("metadata", "spec"):
        part = {name: each for name, each in document.items() if name != field}
        assert agent.refusal("submit_job", document=part).startswith(f"{field}: it is missing")
    assert "metadata" in agent.refusal("submit_job", document={**document, "metadata": 3})
    assert "spec.gpus.options" in agent.refusal("preview_job", document=wrong)


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
    with going(state, "--virtual-gpus", 1) as up, serving("--state", state) as agent:
        assert "boxed" in agent.call("preview_job", document=document)["text"]
        file = root / "boxed.yaml"
        file.write_text(yaml.safe_dump(document), encoding="utf-8")
        assert up("submit", "--dry-run", file).status == 0
        assert not calls.exists()
        # A submission tries the container.
        assert up.submit(document).status == 1
        assert "other/image:latest" in calls.read_text()
