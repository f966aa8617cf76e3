"""Two futures of a real ``dljob up``: as it is, and with one thing that is different; the system is only read."""

import json

import pytest

from dlctl.verbs.studies.supposing import WrongQuestion, answer, read_question
from tests.local.test_web import Page
from tests.local.ups import going, replay

WRONG_HERE = [
    ({"job": "none", "most": 1}, "job: there is no job none"),
    ({"cordon": "node-9"}, "cordon: there is no node node-9; there are node-0, node-1"),
    ({"policy": "adaptif"}, "policy: no policy is named 'adaptif'"),
    ({"job": "long", "least": 3, "most": 2}, "least: 3 GPUs at least and 2 at most is no range"),
]


def ends(future):
    return {job["job"]: job["endsInSeconds"] for job in future["jobs"]}


@pytest.mark.processes
def test_two_futures_of_a_live_system(root):
    state = root / "state"
    with going(state, "--cluster", "2x2", "--policy", "max-min", "--web") as up:
        page = Page(up)
        up.submit(replay("long", root, iterations=1_000_000, faster=1.0, gpus={"options": [1, 2]}))
        up.until_phase("long", "Running")

        # Nothing is different, and so are the futures of one instant.
        told = answer(state, {})
        now, then = told["futures"]
        assert now == then
        assert now["policy"] == "max-min"
        [job] = now["jobs"]
        assert (job["job"], job["gpus"]) == ("long", 2)
        assert job["endsInSeconds"] > 0
        assert job["spans"][:1] + job["spans"][2:3] == [0.0, 2]

        # By the page: on one GPU it ends later, and another job like it comes.
        question = {"job": "long", "most": 1, "another": "long", "policy": "fifo"}
        now, then = json.loads(page.post("api/v1/what-if", question))["futures"]
        assert then["policy"] == "fifo"
        assert list(ends(then)) == ["long", "long-2"]
        assert ends(then)["long"] > ends(now)["long"]

        # Of a node that gives its GPUs to no job any more, the second job gets none.
        held = up.backend.get_job("long")["status"]["allocation"]["nodes"][0]["name"]
        [free] = {node["name"] for node in up.backend.list_nodes()} - {held}
        _, then = answer(state, {"another": "long", "cordon": free})["futures"]
        assert sum(job["gpus"] for job in then["jobs"]) <= 2

        for asked, problem in WRONG_HERE:
            wrong = answer(state, asked)
            assert wrong["status"] == 400
            assert wrong["error"].startswith(problem)

        # All of that was play.
        assert [job["metadata"]["name"] for job in up.backend.list_jobs().items] == ["long"]
        assert up.backend.get_job("long")["spec"]["gpus"] == {"options": [1, 2]}
        assert up.end() == 0


def test_a_wrong_question_names_its_field():
    for question, problem in (
        ([], "the question is no JSON object"),
        ({"polici": "fifo"}, "polici: there is no such field; there are another, cordon, job"),
        ({"job": "a", "most": "2"}, "most: is no whole number"),
        ({"job": "a", "most": True}, "most: is no whole number"),
        ({"job": "a", "priority": 10**9}, "priority: is no whole number of at most 1,000,000"),
        ({"cordon": 1}, "cordon: is no text"),
        ({"most": 2}, "job: is missing"),
    ):
        with pytest.raises(WrongQuestion, match=problem):
            read_question(question)
