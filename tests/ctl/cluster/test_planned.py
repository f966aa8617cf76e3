"""The decision about jobs that are not submitted yet, from the documents of a cluster: without any cluster."""

import json

import pytest

from dljob.client.backend import NotThere
from dljob.client.cluster.reading import planned
from dljob.client.cluster.reading.operators import Operator
from dljob.control.deciding.futures import MAY_KEEP
from dljob.control.settings import load_tree
from dljob.control.situation.status_documents import write_time
from dljob.core.checking import BrokenLaw, Law
from dljob.core.documents.profilefile import render_all
from dljob.core.model import JobId
from dljob.core.policies.baselines.fifo import Fifo
from dljob.core.profiles import Costs, JobType, Profile, Speed
from dljob.operator.kueue.workloads import QUEUE_LABEL
from dljob.operator.reporting.configmap_writing import settings_text
from dljob.operator.settings import OperatorSettings
from dljob_wire.messages import Shape
from dljob_wire.problems import WrongDocument
from tests.operator.manifests import make_manifest
from tests.servers.nodes import make_node

NOW = 1_769_860_800.0
NODE = make_node("n1", labels={"dljob.io/pool": "", "dljob.io/gpu-count": "4"})


class FakeOperator(Operator):
    def __init__(self, told=None, learned=None, **settings):
        self.told = told or {}
        self.known = learned or {}
        self.changed = {"policy": "fifo", **settings}

    def settings(self):
        if "policy" not in self.changed:
            raise NotThere("no operator shows its settings in namespace dljob-system")
        shown = json.loads(settings_text(load_tree(OperatorSettings()).described()))
        return [{**each, "value": self.changed.get(each["name"], each["value"])} for each in shown]

    def known_gpus(self):
        return self.told

    def learned(self):
        return self.known


NONE = FakeOperator()
del NONE.changed["policy"]


def job(name, *, status=None, namespace="ns", **spec):
    document = make_manifest(name, **{"gpus": {"options": [2]}, **spec})
    created = {"uid": name, "generation": 1, "creationTimestamp": write_time(NOW - 100.0)}
    document["metadata"] |= {"namespace": namespace, **created}
    return document | ({"status": status} if status else {})


def running(name, *gpus, done=0, **spec):
    nodes = [{"name": "n1", "gpuIds": list(gpus)}]
    times = {"startedAt": write_time(NOW - 90.0), "submittedAt": write_time(NOW - 100.0)}
    progress = {"iteration": done, "iterationsPerSecond": 5.0, "iteratedAt": write_time(NOW)}
    allocation = {"gpus": len(gpus), "generation": 1, "nodes": nodes}
    status = {"phase": "Running", "allocation": allocation, "progress": progress, **times}
    return job(name, status=status, **spec)


def plan(newcomers, jobs=(), *, nodes=(NODE,), granted=None, operator=None):
    return planner(jobs, nodes=nodes, granted=granted, operator=operator).plan(newcomers)


def planner(jobs=(), *, nodes=(NODE,), granted=None, operator=None):
    operator = operator or FakeOperator()
    return planned.Planner(operator, jobs, nodes=nodes, granted=granted or {}, now=NOW)


def test_a_job_starts_on_free_gpus_of_the_pool():
    other = make_node("n0", labels={"dljob.io/gpu-count": "8"})
    alike = {"profile": {"model": "bert"}}
    jobs = [running("old", 0, 1, **alike)]
    [effect] = plan([job("new", **alike)], jobs, nodes=(other, NODE))
    assert (effect["job"], effect["submitted"], effect["step"]) == ("ns/new", True, "start")
    assert effect["new"] == {"gpus": 2, "nodes": [{"name": "n1", "gpuIds": [2, 3]}]}
    # A job of the same type trains at five iterations a second.
    assert (effect["iterationsPerSecond"], effect["secondsAfter"]) == (5.0, 200.0)


def test_a_job_waits_for_the_end_of_another_and_the_plan_gives_the_time():
    old = running("old", 0, 1, 2, 3, done=500, gpus={"options": [4]})
    [effect] = plan([job("new")], [old])
    start = {"ahead": 0, "expectedStart": write_time(NOW + 100.0)}
    assert (effect["step"], effect["queue"]) == ("wait", start)
    waiting = job("first", status={"phase": "Queued"}, gpus={"options": [4]})
    assert plan([job("new")], [old, waiting])[0]["queue"]["ahead"] == 1


def test_a_plan_rests_on_the_profiles_that_the_operator_publishes():
    known = Profile(
        JobType("net", "", 0), {Shape(2): Speed(10.0, 5.0)}, costs=Costs(checkpoint=2.0)
    )
    learned = {"profiles": render_all([known])}
    newcomer = job("new", profile={"model": "net"})
    [effect] = plan([newcomer], operator=FakeOperator(learned=learned))
    assert (effect["iterationsPerSecond"], effect["secondsAfter"]) == (10.0, 102.0)
    assert effect["start"]["earliest"] == write_time(NOW)
    assert effect["end"]["expected"] == write_time(NOW + 102.0)
    assert effect["end"]["earliest"] < effect["end"]["expected"] < effect["end"]["latest"]
    [effect] = plan([newcomer], operator=FakeOperator(learned={"profiles": {"kind": "Other"}}))
    assert effect["end"] == {"unknownBecause": "the speed of ns/new is not known yet"}


def test_jobs_in_queues_keep_the_quota_that_they_use():
    queued = {"kueue.enabled": True}

    def with_quota(document, *, status, reason="Pending"):
        told = {"type": "QuotaReserved", "status": status, "reason": reason, "message": "none"}
        document["status"]["conditions"] = [told | {"lastTransitionTime": write_time(NOW - 50.0)}]
        return document

    saves = {
        "signal": "SIGUSR1",
        "confirm": "file",
        "path": "/ckpt",
        "shared": True,
        "trusted": True,
    }
    grows = running("grows", 0, gpus={"options": [1, 2]}, checkpoint=saves)
    with_quota(grows, status="True")
    waits = with_quota(job("waits", status={"phase": "Queued"}), status="False")
    question = {"policy": "fifo"}
    for settings, gpus in (
        (queued, {"ns/grows": 1, "ns/waits": 0}),
        ({}, {"ns/grows": 2, "ns/waits": 2}),
    ):
        asked = planner([grows, waits], operator=FakeOperator(policy="max-min", **settings))
        answer = asked.what_if(question, seconds=60.0)
        assert {each["job"]: each["gpus"] for each in answer["futures"][0]["jobs"]} == gpus
        assert (planned.QUEUED in answer["notes"]) == bool(settings)
    # What a job borrows of the shares of users is no quota of Kueue.
    asked = planner(
        [with_quota(grows, status="True", reason="Borrowed")],
        operator=FakeOperator(policy="max-min", **queued),
    )
    [future] = asked.what_if(question, seconds=60.0)["futures"][0]["jobs"]
    assert future["gpus"] == 2


def test_a_plan_says_that_the_quota_of_a_new_job_is_not_known():
    newcomer = job("new")
    for labels, settings in (({}, {"kueue.enabled": True}), ({QUEUE_LABEL: "a"}, {})):
        newcomer["metadata"]["labels"] = labels
        asked = planner(operator=FakeOperator(**settings))
        asked.plan([newcomer])
        assert planned.QUEUED not in asked.limits
    asked = planner(operator=FakeOperator(**{"kueue.enabled": True}))
    [effect] = asked.plan([newcomer])
    assert effect["step"] == "start"
    assert planned.QUEUED in asked.limits


def test_a_policy_gets_its_state_from_the_operator(monkeypatch):
    seen = []

    class Watching(Fifo):
        def allocate(self, view):
            seen.append(view.state)
            return super().allocate(view)

    monkeypatch.setattr(planned, "read_live_policy", lambda _: Watching())
    state = {"form": 1}
    plan([job("new")], operator=FakeOperator(learned={"policy": "fifo", "state": state}))
    assert seen[0] == state
    seen.clear()
    plan([job("new")], operator=FakeOperator(learned={"policy": "other", "state": state}))
    assert seen[0] is None


BROKEN = BrokenLaw(Law.ONE_MASTER, JobId("ns/new"), "gets GPUs twice", policy="fifo", at_s=NOW)


@pytest.mark.parametrize("error", [ValueError("no\nsuch"), BROKEN], ids=["error", "law"])
def test_the_failure_of_a_policy_is_one_line(monkeypatch, error):
    class Failing(Fifo):
        def allocate(self, view):
            raise error

    monkeypatch.setattr(planned, "read_live_policy", lambda _: Failing())
    with pytest.raises(
        planned.CannotPlan, match=r"^the policy fifo cannot decide .*; choose another"
    ) as told:
        plan([job("new")])
    assert "\n" not in str(told.value)


def test_a_job_that_gives_gpus_up_is_shown():
    saved = {"path": "/saved", "trusted": True}
    old = running("old", 0, 1, 2, 3, gpus={"options": [2, 4]}, checkpoint=saved)
    new, other = plan([job("new")], [old], operator=FakeOperator(policy="max-min"))
    assert (new["step"], other["step"], other["job"]) == ("start", "reshape", "ns/old")
    assert (other["old"]["gpus"], other["new"]["gpus"]) == (4, 2)
    assert not other["message"].endswith(MAY_KEEP)
    old["status"]["phase"] = "Initialized"
    assert plan([job("new")], [old], operator=FakeOperator(policy="max-min"))[1][
        "message"
    ].endswith(MAY_KEEP)


def test_gpus_that_the_operator_leaves_out_and_limits_of_namespaces_count():
    out = {"n1": {"out": {"0": "it reported Xid 79", "1": "it reported Xid 79"}}}
    [effect] = plan([job("new")], operator=FakeOperator(told=out))
    assert effect["new"]["nodes"] == [{"name": "n1", "gpuIds": [2, 3]}]
    limited = FakeOperator(**{"limits.maxGpus": {"ns": 1}})
    assert plan([job("new")], operator=limited)[0]["step"] == "wait"


def test_a_priority_that_a_namespace_is_granted_counts():
    closed = FakeOperator(**{"limits.maxPriority": {"*": 0}})
    proud = job("new", priority=10)
    assert "its priority is 10" in plan([proud], operator=closed)[0]["message"]
    assert plan([proud], granted={"ns": 10}, operator=closed)[0]["step"] == "start"


def test_jobs_that_the_operator_leaves_alone_do_not_count():
    condition = {"type": "SetAside", "status": "True", "message": "its plan broke a law"}
    aside = job("aside", status={"phase": "Queued", "conditions": [condition]})
    others = [aside, job("ended", status={"phase": "Completed"}), job("far", namespace="other")]
    wide = job("new", gpus={"options": [4]})
    assert plan([wide], others, operator=FakeOperator(watched=["ns"]))[0]["step"] == "start"


@pytest.mark.parametrize(
    ("newcomer", "operator", "why"),
    [
        (job("new"), NONE, "no operator shows its settings .*; it is not known when"),
        (job("new"), FakeOperator(policy="ours.py:Own"), "the policy of the operator"),
        (job("new"), FakeOperator(mechanism="magic"), "the settings of the operator"),
        (job("new"), FakeOperator(watched=["team"]), "does not watch namespace ns"),
        (job("new", managedBy="kueue.x-k8s.io/multikueue"), FakeOperator(), "is managed by kueue"),
    ],
)
def test_where_the_decision_is_not_known_the_reason_is(newcomer, operator, why):
    with pytest.raises(planned.CannotPlan, match=why):
        plan([newcomer], operator=operator)
    with pytest.raises(planned.CannotPlan, match="only the operator of the cluster decides"):
        plan([newcomer], nodes=None)


def futures(question, *jobs, **given):
    answer = planner(jobs, **given).what_if(question, seconds=240.0)
    now, then = ({each["job"]: each for each in f["jobs"]} for f in answer["futures"])
    return now, then, answer


def test_what_if_plays_two_futures_of_all_jobs():
    alike = {"profile": {"model": "bert"}}
    old = running("old", 0, 1, 2, 3, done=500, gpus={"options": [4]}, **alike)
    waiting = job("a", status={"phase": "Queued"}, gpus={"options": [2, 4]}, **alike)
    now, then, answer = futures({"job": "ns/a", "most": 2, "another": "ns/a"}, old, waiting)
    assert set(then) - set(now) == {"ns/a-2"}
    assert (now["ns/old"]["gpus"], now["ns/old"]["spans"]) == (4, [0.0, 100.0, 4])
    assert now["ns/a"]["spans"][0] == then["ns/a"]["spans"][0] == 100.0
    assert (now["ns/a"]["spans"][2], then["ns/a"]["spans"][2]) == (4, 2)
    assert now["ns/a"]["endsInSeconds"] == now["ns/a"]["spans"][1]
    assert answer["notes"] == [planned.LIMITS, planned.UNLEARNED]


def test_what_if_uses_defaults_for_unreadable_settings():
    told = planned.Planner(NONE, [job("a")], nodes=[NODE], granted={}, now=NOW, supposes=True)
    answer = told.what_if({}, seconds=240.0)
    assert "the defaults are taken" in answer["notes"][-2]
    assert answer["futures"][0]["policy"] == "foresight"


def test_what_if_asks_for_another_policy_or_a_node_less():
    saved = {"path": "/saved", "trusted": True}
    old = running("old", 0, 1, 2, 3, gpus={"options": [2, 4]}, checkpoint=saved)
    waiting = job("a", status={"phase": "Queued"})
    now, then, answer = futures({"policy": "max-min"}, old, waiting)
    assert [each["policy"] for each in answer["futures"]] == ["fifo", "max-min"]
    assert (now["ns/old"]["gpus"], then["ns/old"]["gpus"]) == (4, 2)
    now, then, _ = futures({"cordon": "n1"}, waiting)
    assert (now["ns/a"]["gpus"], then["ns/a"]["gpus"]) == (2, 0)
    assert now["ns/a"]["endsInSeconds"] == 3600.0
    assert (then["ns/a"]["endsInSeconds"], "unknownBecause" in then["ns/a"]) == (None, True)


@pytest.mark.parametrize(
    ("question", "problem"),
    [
        ([], "the question is no JSON object"),
        ({"polici": "fifo"}, "polici: there is no such field; there are another, cordon, job"),
        ({"job": "ns/a", "most": "2"}, "most: it is no whole number"),
        ({"job": "ns/a", "most": True}, "most: it is no whole number"),
        (
            {"job": "ns/a", "priority": 10**9},
            "priority: it is no whole number of at most 1,000,000",
        ),
        ({"cordon": 1}, "cordon: it is no text"),
        ({"most": 2}, "job: it is missing"),
        ({"job": "ns/none", "most": 2}, "job: there is no job ns/none"),
        ({"job": "ns/a", "least": 4, "most": 2}, "least: 4 GPUs at least and 2 at most"),
        ({"cordon": "n9"}, "cordon: there is no node n9; there are n1"),
        ({"policy": "none"}, "policy: "),
        ({"policy": "mine.py:Mine"}, "policy: .* is a file"),
    ],
)
def test_a_wrong_question_names_its_field(question, problem):
    with pytest.raises(WrongDocument, match=problem):
        planner([job("a")]).what_if(question, seconds=240.0)
