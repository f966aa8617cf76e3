"""Which users get futures, and what their games get with the question."""

import asyncio
import json

import pytest

from dljob.cli.verbs.studies.supposing import suppose_here
from dljob.client.backend import Created
from dljob.client.cluster.reading.planned import LIMITS, UNLEARNED
from dljob.core.documents import jobfile
from dljob.core.documents.profilefile import render_all
from dljob.core.profiles import JobType, Profile, Speed
from dljob_web.games import GameError, Games
from dljob_web.portal.planning import plan_here
from dljob_web.portal.posing import KEPT, MOST_BYTES, Known, explain_withheld, pose_game, pose_plan
from dljob_web.portal.rights import Rights
from dljob_wire.messages import Shape
from tests.ctl.cluster import test_planned as planned
from tests.operator.manifests import make_manifest

NOTHING = Known([], profiles=[], notes=["of this test"])


def test_a_user_who_sees_everything_gets_futures():
    assert explain_withheld(Rights(None, nodes=True)) == ""


@pytest.mark.parametrize(
    ("rights", "missing"),
    [
        (Rights(None, nodes=False), "may not list nodes;"),
        (Rights(frozenset({"red"}), nodes=True), "may not list DLJobs in all namespaces;"),
        (Rights(frozenset({"red"}), nodes=False), "may not list DLJobs in all namespaces;"),
        (Rights(frozenset(), nodes=True), "may not list DLJobs in all namespaces;"),
    ],
)
def test_others_learn_what_is_missing_and_the_remedy(rights, missing):
    told = explain_withheld(rights)
    assert missing in told
    assert "ClusterRoleBinding" in told
    assert "red" not in told


def test_a_game_gets_no_credentials(monkeypatch):
    monkeypatch.setenv("DLJOB_STORE", "mongodb://user:secret@store")
    game = pose_game({}, jobs=[], nodes=[], known=NOTHING)
    assert game.environment is not None
    assert set(game.environment) <= {*KEPT, "OPENBLAS_NUM_THREADS"}
    assert b"secret" not in game.question


@pytest.mark.processes
def test_a_game_that_takes_too_much_memory_is_refused_with_the_remedy():
    game = pose_game({}, jobs=[job("red", "a")] * 2_000, nodes=NODES, known=NOTHING)
    assert game.words[-1] == str(MOST_BYTES)
    # Less than the process has when it begins.
    game = game._replace(words=(*game.words[:-1], str(1 << 20)))
    with pytest.raises(GameError, match="too much memory here; ask with") as caught:
        asyncio.run(Games().play(game, is_gone=lambda: False))
    assert caught.value.status == 504


def job(namespace, name):
    document = make_manifest(name)
    document["metadata"]["namespace"] = namespace
    return document


NODES = [{"name": "n", "gpuType": "A100", "gpus": [{"index": 0, "state": "free"}]}]


def ask(question, **others):
    jobs = [job("red", "a"), job("red", "a-2"), job("blue", "a")]
    game = pose_game(question, jobs=jobs, nodes=NODES, known=NOTHING._replace(**others))
    return suppose_here(json.loads(game.question))


def test_a_game_knows_jobs_by_their_namespaces():
    told = ask({"another": "blue/a"})
    now, then = told["futures"]
    assert {each["job"] for each in now["jobs"]} == {"red/a", "red/a-2", "blue/a"}
    # The copy is numbered among the jobs of its own namespace.
    assert {each["job"] for each in then["jobs"]} - {each["job"] for each in now["jobs"]} == {
        "blue/a-2"
    }
    assert "of this test" in told["notes"]
    assert any(note.startswith("no speed is known of red/a, red/a-2, ") for note in told["notes"])


def test_a_game_has_the_settings_and_the_profiles_of_the_operator():
    settings = [{"name": "policy", "value": "fifo"}]
    [policy, _] = (each["policy"] for each in ask({}, settings=settings)["futures"])
    assert policy == "fifo"
    kind = JobType("resnet", "imagenet", 256)
    known = Profile(kind, {Shape(1, 1, "A100"): Speed(1.0)})
    game = pose_game({}, jobs=[], nodes=NODES, known=NOTHING._replace(profiles=[known]))
    assert "resnet" in str(json.loads(game.question)["profiles"])


def plan(newcomer, *jobs, learned=None, **settings):
    premises = {
        "nodes": [planned.NODE],
        "settings": planned.FakeOperator(**settings).settings(),
        "gpus": {},
        "learned": learned or {},
        "granted": {},
    }
    created = Created([newcomer], ["of this test"])
    game = pose_plan(created, jobs=jobs, premises=premises)
    return plan_here(json.loads(game.question))


def test_a_plan_is_what_submit_with_a_dry_run_says():
    jobs = [planned.running("old", 0, 1)]
    told = plan(planned.job("new"), *jobs)
    [effect] = told["items"]
    assert (effect["job"], effect["step"], effect["new"]["gpus"]) == ("ns/new", "start", 2)
    assert effect.keys() == planned.plan([planned.job("new")], jobs)[0].keys()
    assert told["notices"] == ["of this test", LIMITS, UNLEARNED]


def test_a_plan_knows_the_profiles_of_the_operator():
    newcomer = planned.job("new", profile={"model": "bert"})
    kind = jobfile.parse(newcomer).type
    assert "secondsAfter" not in plan(newcomer)["items"][0]
    known = Profile(kind, {Shape(gpus=2, nodes=1): Speed(10.0)})
    told = plan(newcomer, learned={"profiles": render_all([known])})
    assert (told["items"][0]["iterationsPerSecond"], told["items"][0]["confidence"]) == (10.0, 1.0)
    assert told["notices"][1:] == [LIMITS]


def test_without_a_plan_the_job_is_accepted_and_the_reason_told():
    told = plan(planned.job("new", managedBy="kueue.x-k8s.io/multikueue"))
    assert [(each["job"], each["step"]) for each in told["items"]] == [("ns/new", "unknown")]
    assert "is managed by kueue" in told["notices"][1]
