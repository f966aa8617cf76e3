"""
The what-if questions on the page of a cluster on a real control plane: which users get an answer,
and that hostile questions do no harm.
"""

import pytest

from addons.web.tests.portal.houses import BLUE, RED

pytestmark = [pytest.mark.cluster, pytest.mark.processes]

BOTH = {f"{RED}/red-runs", f"{BLUE}/blue-runs"}
QUESTION = {"job": f"{RED}/red-runs", "most": 1, "another": f"{BLUE}/blue-runs"}
SCRIPT = "</script><script>alert(1)</script>\x1b[31m"


@pytest.mark.story
def test_full_view_gets_two_futures_of_all_jobs(house):
    assert house.ask("/api/v1/what-if", "chief") == (200, {"allowed": True, "reason": ""})
    status, told = house.suppose("chief", QUESTION)
    assert status == 200, told
    now, then = told["futures"]
    assert {job["job"] for job in now["jobs"]} == BOTH
    assert {job["job"] for job in then["jobs"]} == BOTH | {f"{BLUE}/blue-runs-2"}
    gpus = {job["job"]: job["gpus"] for job in now["jobs"]}
    assert gpus[f"{RED}/red-runs"] == 2
    gpus = {job["job"]: job["gpus"] for job in then["jobs"]}
    assert gpus[f"{RED}/red-runs"] == 1
    assert any("profiles cannot be read" in note for note in told["notes"])
    # All of that was play.
    _, jobs = house.ask("/api/v1/jobs", "chief")
    assert len(jobs["items"]) == 2


def test_partial_view_is_refused_with_the_remedy(house):
    questions = [
        {},
        {"job": f"{RED}/red-runs", "most": 1},
        {"job": f"{BLUE}/blue-runs", "most": 1},
        {"job": f"{BLUE}/none", "most": 1},
        {"another": f"{BLUE}/blue-runs"},
        {"cordon": "node-1"},
        {"policy": "none"},
        b"{",
    ]
    for user, missing in (("blue", "DLJobs in all namespaces;"), ("planner", "nodes;")):
        status, told = house.ask("/api/v1/what-if", user)
        assert (status, told["allowed"]) == (200, False)
        assert f"you may not list {missing}" in told["reason"]
        assert "ClusterRoleBinding" in told["reason"]
        answers = [house.suppose(user, each) for each in questions]
        # The answer is the same for jobs that exist and for those that do not.
        assert answers == [(403, {"error": told["reason"]})] * len(questions)


def test_without_a_token_or_from_the_page_of_another_server_there_is_no_answer(house):
    assert house.suppose("stranger", {})[0] == 403
    assert house.suppose("chief", {}, Authorization="Bearer nonsense")[0] == 401
    status, told = house.suppose("chief", {}, Origin="http://evil.example.com")
    assert (status, told["error"]) == (403, "this request comes from a page of another server")
    assert house.suppose("chief", {}, Host="evil.example.com")[0] == 403


HOSTILE = [
    ({"job": SCRIPT, "most": 1}, "job: there is no job </script>"),
    ({"cordon": SCRIPT}, "cordon: there is no node </script>"),
    ({"policy": "/etc/passwd:Class"}, "policy: "),
    ({SCRIPT: 1}, "</script>"),
    (b"[" * 50_000, "the question is no JSON"),
    (b"[]", "the question is no JSON object"),
]


def test_hostile_words_come_back_harmless(house):
    for question, problem in HOSTILE:
        status, told = house.suppose("chief", question)
        assert status == 400, told
        assert told["error"].startswith(problem)
        assert "\x1b" not in told["error"]
    assert house.suppose("chief", {"job": "x" * 100_000})[0] == 413, "a question that is too large"
