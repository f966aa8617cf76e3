"""``kubectl dljob mcp`` against a real control plane: as on one machine, with the rights of its user."""

import pytest

from addons.mcp.tests.agents import serving

pytestmark = [pytest.mark.cluster, pytest.mark.processes]

FOREVER = 10**6


def test_an_agent_asks_and_changes_a_cluster(scene, ada):
    document = scene.stage.make_job("asked-for", iterations=FOREVER)
    document["spec"]["suspend"] = True
    with serving("--allow-changes", started_as="kubectl-dljob", **ada.environment()) as agent:
        for field in ("metadata", "spec"):
            part = {name: each for name, each in document.items() if name != field}
            assert agent.refusal("submit_job", document=part).startswith(f"{field}: is missing")
            assert agent.refusal("preview_job", document=part).startswith(f"{field}: is missing")
        elsewhere = {**document["metadata"], "namespace": ".."}
        told = agent.refusal("submit_job", document={**document, "metadata": elsewhere})
        assert told.startswith("metadata.namespace: ")
        assert agent.call("submit_job", document=document)["submitted"] == ["asked-for"]
        assert "asked-for" in [job["job"] for job in agent.call("list_jobs")["jobs"]]
        assert "does not match" in agent.refusal("get_job", job="../asked-for")
        assert agent.call("set_job", job="asked-for", priority=3)["changed"]
        assert scene.stage.job("asked-for")["spec"]["priority"] == 3
        played = agent.call("what_if", another="asked-for")
        # The job itself is suspended, and its copy is not; another namespace would be named.
        now, then = ([job["job"] for job in each["jobs"]] for each in played["futures"])
        assert set(then) - set(now) == {"asked-for-2"}
        assert "/none; dljob get lists" in agent.refusal("what_if", job="none", priority=4)
        assert agent.call("cancel_job", job="asked-for")["done"] == "cancelled"


def test_an_agent_learns_that_its_user_sees_a_part(scene):
    viewer = scene.user("agent-viewer", "dljob-view")
    with serving(KUBECONFIG=str(viewer), DLJOB_PLATFORM="cluster") as agent:
        notices = agent.call("list_gpus")["notices"]
        assert any("that you may see are shown" in each for each in notices)
