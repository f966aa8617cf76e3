"""``dljob simulate --live``: what a policy would do with the jobs that a live system has now."""

import pytest

from dljob.cli.output.forms import to_json
from dljob.core.checking import Law
from dljob.core.contract import Decision, Share, View
from dljob.core.documents import profilefile
from dljob.core.model import NodeName, Placement
from dljob.core.profiles import Costs, JobType, Profile, Speed
from dljob.sim import policies
from dljob.sim.engine.settings import Setting
from dljob.sim.jobs.workloads import Standing
from dljob_wire.messages import Shape
from tests.sim.worlds import COSTS, ONE_NODE, Watched, make_traced, make_workload


def standing(name: str, gpus: tuple[int, ...], *, done: float = 0.0, at: float = -100.0, **more):
    placement = Placement.of({NodeName("n1"): gpus}) if gpus else None
    traced = make_traced(name, at=at, **more)
    now = Standing(iterations_done=done, service=50.0, placement=placement, started_at=at)
    return type(traced)(traced.job, traced.iterations, standing=now)


class Keeping:
    """Leaves every job what it has."""

    name, paper, needs = "keeping", "none", "nothing"
    breaks: frozenset[Law] = frozenset()

    def __init__(self) -> None:
        self.views: list[View] = []

    def allocate(self, view: View) -> Decision:
        self.views.append(view)
        return Decision(
            {s.id: Share(s.placement.gpus) for s in view.running if s.placement is not None}
        )


def world(*jobs, policy):
    setting = Setting(nodes=ONE_NODE, costs=COSTS)
    return Watched(make_workload(*jobs), setting, policy=policy).play()


# --- a world that begins with jobs --------------------------------------------------------


def test_a_job_that_trains_goes_on_where_it_is_without_a_start():
    record = world(standing("a", (0, 1), done=400.0, iterations=1000.0), policy=Keeping())
    assert record.jobs[0].completed_at == 300.0
    assert record.jobs[0].reshapes == 0


def test_policies_are_shown_how_far_a_job_is_and_how_old():
    policy = Keeping()
    world(standing("a", (0, 1), done=400.0), policy=policy)
    (state,) = policy.views[0].running
    assert policy.views[0].now == 0.0
    assert (state.iterations_done, state.service, state.started_at) == (400.0, 50.0, -100.0)
    assert state.job.submitted_at == -100.0
    assert state.placement is not None
    assert state.placement.gpus == 2


def test_gpus_of_a_job_that_trains_are_given_to_another_only_after_its_change():
    jobs = (
        standing("a", (0, 1, 2, 3), iterations=4000.0),
        standing("b", (), at=-10.0, iterations=100.0),
    )
    record = world(*jobs, policy=policies.make("max-min"))
    times = {job.job: job.completed_at for job in record.jobs}
    # The pod of b needs 50 s and its process 10 s, and a has stopped for it meanwhile.
    assert times["b"] > 60.0
    assert {job.job: job.reshapes > 0 for job in record.jobs}["a"]


def test_a_job_that_holds_fewer_gpus_than_it_asked_for_is_not_dropped():
    record = world(standing("a", (0,), options=(1, 8), requested=8), policy=Keeping())
    assert not record.dropped
    assert record.jobs[0].completed_at == 1000.0


# --- the command --------------------------------------------------------------------------


def test_each_policy_says_what_it_would_do_and_when_each_job_would_end(played):
    played.submit("a", "b")
    played.do("give", "a", {"n1": (0, 1, 2, 3)}, iteration=100)
    options = ("--policy", "fifo", "--policy", "max-min", "--restart-cost", 0, "-o", "json")
    fifo, shared = played("simulate", "--live", *options).data
    assert (fifo["policy"], fifo["jobs"], fifo["trace"]) == ("fifo", 2, "live")
    ends = {each["job"]: each for each in fifo["ends"]}
    assert ends["a"]["gpus"] == 4
    # The first of two that want all GPUs ends, and then the other.
    assert 0.0 < ends["a"]["ends_in_s"] < ends["b"]["ends_in_s"]
    assert {each["job"]: each["gpus"] for each in shared["ends"]} == {"a": 2, "b": 2}


def test_what_is_left_follows_from_how_far_the_job_is(played):
    played.submit("a", gpus={"options": [4]})
    played.do("give", "a", {"n1": (0, 1, 2, 3)}, iteration=0, speed=2.0)

    def end() -> float:
        (score,) = played("simulate", "--live", "-o", "json").data
        return float(score["ends"][0]["ends_in_s"])

    begin = end()
    played.do("train", "a", 750, speed=2.0)
    # It trains on while the command starts.
    assert 0 < end() < begin / 2


def test_speeds_are_those_of_profiles_that_are_given(played):
    kind = JobType("resnet")
    fast = Profile(kind, {Shape(4, 1): Speed(100.0)}, costs=Costs())
    (played.folder / "known.json").write_text(to_json(profilefile.render_all([fast])))
    played.submit("a", gpus={"options": [4]})
    options = ("--profiles", "known.json", "--restart-cost", 0, "-o", "json")
    (score,) = played("simulate", "--live", *options).data
    assert score["ends"][0]["ends_in_s"] == pytest.approx(10.0)


def test_a_job_ends_when_the_lists_say_it_does(played):
    fast = Profile(JobType("resnet"), {Shape(2, 1): Speed(100.0)}, costs=Costs())
    (played.folder / "known.json").write_text(to_json(profilefile.render_all([fast])))
    # Nothing saves its work, so it keeps its GPUs although the other job would be done at once.
    played.submit("a", gpus={"options": [1, 2]}, checkpoint=None)
    played.submit("b", gpus={"options": [4]}, training={"iterations": 10})
    played.do("give", "a", {"n1": (0, 1)}, iteration=100, speed=2.0)
    (score,) = played("simulate", "--live", "--profiles", "known.json", "-o", "json").data
    shown = played("get", "a", "-o", "json").data["status"]["progress"]["etaSeconds"]
    assert score["ends"][0]["gpus"] == 2
    assert score["ends"][0]["ends_in_s"] == pytest.approx(shown, abs=3.0)


def test_a_job_of_unknown_length_trains_as_long_again_as_it_has(played):
    spec = {"gpus": {"options": [4]}, "training": {"target": {"metric": "top5", "value": 0.9}}}
    spec["progress"] = {"log": r"step (?P<iteration>\d+) top5=(?P<top5>\S+)"}
    played.submit("a", **spec)
    played.do("give", "a", {"n1": (0, 1, 2, 3)}, iteration=90_000, speed=1.0)
    (score,) = played("simulate", "--live", "-o", "json").data
    assert score["ends"][0]["ends_in_s"] is not None


def test_jobs_that_hold_no_gpus_any_more_and_suspended_ones_are_left_out(played):
    played.submit("a", "b")
    played("suspend", "b")
    (score,) = played("simulate", "--live", "-o", "json").data
    assert [each["job"] for each in score["ends"]] == ["a"]
    # The policy is that of the system unless another is named.
    assert score["policy"] == "foresight"
    (line,) = (
        line
        for line in played("simulate", "--live", "--policy", "fifo").stdout.splitlines()
        if line.startswith("a ")
    )
    assert "4 GPUs, ends in" in line
    played("suspend", "a")
    nothing = played("simulate", "--live", "-o", "json")
    assert (nothing.status, nothing.stdout, "no jobs" in nothing.stderr) == (0, "", True)


def test_gpus_out_of_use_are_given_to_nobody(played):
    played.submit("a", gpus={"options": [1, 2, 4]})
    for gpu in (1, 2, 3):
        assert played("gpu", "cordon", f"n1/{gpu}").status == 0
    result = played("simulate", "--live", "-o", "json")
    assert result.data[0]["ends"][0]["gpus"] == 1
    assert "3 GPUs are out of use" in result.stderr


def test_a_trace_and_a_live_system_exclude_each_other(dljob, folder):
    for options, told in (
        (("--live", "five.csv"), "leave TRACE out"),
        (("--live", "--gpus", 8), "leave --gpus out"),
        (("five.csv", "--state", "."), "for --live alone"),
        ((), "Missing argument 'TRACE'"),
    ):
        result = dljob("simulate", *options)
        assert result.status == 2
        assert told in result.stderr
