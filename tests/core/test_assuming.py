"""The clauses that explain a policy's assumptions about a job to users."""

import math
from typing import Any

from dljob.core.assuming import (
    AS_LONG_AGAIN,
    GUESSES,
    USUAL_CURVE,
    Assumes,
    Assuming,
    Assumptions,
    Knowledge,
)
from dljob.core.model import BatchRange, JobId, JobState, Training
from dljob.core.policies.foresight.memory import Memory, State
from dljob.core.profiles import JobType, Profile, Speed
from dljob.sim import policies
from dljob_wire.messages import Shape
from tests.builders import make_cluster, make_profile, make_snapshot, make_state

KNOWN = make_profile({1: 1.0, 2: 1.8, 4: 3.0})


def assume(
    state: JobState,
    policy: str = "foresight",
    profiles: tuple[Profile, ...] = (KNOWN,),
    **nodes: Any,
) -> tuple[str, ...]:
    snapshot = make_snapshot(make_cluster(**(nodes or {"n1": 8})), state, profiles=profiles)
    return Assumptions(snapshot, policies.read(policy)).of(state)


def assumes_of(name: str) -> Assumes:
    policy = policies.make(name)
    return policy.assumes if isinstance(policy, Assuming) else {}


def test_each_policy_states_its_assumptions():
    blank = make_state(
        iterations_total=math.inf, batch=BatchRange(elastic=True, maximum=256), options=(1, 2)
    )
    training = Training(iterations=1000, iterations_per_epoch=100)
    known = make_state(options=(1, 2, 4), training=training)
    for name in policies.NAMES:
        needs, assumes = policies.make(name).needs, assumes_of(name)
        assert bool(assumes) or needs == "nothing", name
        is_length_needed = any(word in needs for word in ("iterations", "lengths", "sizes"))
        assert (Knowledge.LENGTH in assumes) == is_length_needed, name
        assert (Knowledge.SPEED in assumes) == ("speeds" in needs), name
        assert (Knowledge.MEASURED in assumes) == ("speeds" in needs), name
        clauses = assume(blank, name, profiles=())
        fallbacks = {k: v for k, v in assumes.items() if k is not Knowledge.MEASURED}
        assert [each.partition(f"; {name} ")[2] for each in clauses] == list(fallbacks.values())
        assert all(each.isprintable() and not each.endswith(".") for each in clauses)
        assert assume(known, name) == (), name


def test_unknown_length_is_explained():
    (clause,) = assume(make_state(options=(1,), iterations_total=math.inf))
    assert clause == (
        "its length is unknown; foresight assumes the lengths of jobs that ended before, each as"
        " likely as the others"
    )
    assert assume(make_state(options=(1,), iterations_total=math.inf), "lyra") == (
        f"its length is unknown; lyra {AS_LONG_AGAIN}",
    )


def test_unmeasured_gpu_counts_are_listed():
    def clause_for(*options: int) -> str:
        (clause,) = assume(make_state(options=options))
        return clause

    assert clause_for(2, 8) == f"its speed on 8 GPUs is not measured yet; foresight {GUESSES}"
    assert clause_for(5, 8).startswith("its speed on 5 or 8 GPUs is not measured yet")
    assert clause_for(5, 6, 7, 8).startswith("its speed on 5, 6, 7 or 8 GPUs is not measured yet")
    # One between two measured ones is a guess as well, though a good one.
    assert clause_for(1, 3).startswith("its speed on 3 GPUs is not measured yet")
    # More than the cluster has are of no interest.
    assert assume(make_state(options=(4, 8)), n1=4) == ()


def test_unmeasured_gpu_types_are_named():
    shapes = {Shape(1, 1, "V100"): 2.0, Shape(2, 1, "V100"): 3.5, Shape(1, 1, "P100"): 1.0}
    kind = JobType("resnet")
    profile = Profile(kind, {shape: Speed(speed) for shape, speed in shapes.items()})
    nodes: dict[str, Any] = {"n1": (2, "V100"), "n2": (2, "P100")}
    (clause,) = assume(make_state(options=(1, 2)), profiles=(profile,), **nodes)
    assert clause.startswith("its speed on 2 GPUs is not measured yet")
    nothing = Profile(kind, {Shape(4, 1, "K80"): Speed(1.0)})
    (clause,) = assume(make_state(options=(1, 2)), profiles=(nothing,), **nodes)
    assert clause.startswith("its speed on 1 or 2 GPUs of type P100 or V100 is not measured yet")
    held = make_state(options=(1, 2), holds={"n1": (0,)}, gpu_type="V100")
    assert assume(held, profiles=(profile,), **nodes) == ()


def test_speed_of_running_job_counts_as_known():
    state = make_state(options=(1, 8), holds={"n1": range(8)})
    assert assume(state) == ()
    adjusting = make_state(options=(1, 8), holds={"n1": range(8)}, adjusting=True)
    assert len(assume(adjusting)) == 1
    endless = make_state(
        options=(1, 8), holds={"n1": range(8)}, iterations_total=math.inf, service=720.0
    )
    goes_by = "goes by the GPU time that it and the jobs before it have had"
    assert assume(endless, profiles=())[1] == (
        "no speed of it is known but the present one after about 12 min of GPU time; foresight"
        f" {USUAL_CURVE}, and {goes_by}"
    )


def test_job_longer_than_usual_says_so():
    lengths = {JobId(f"job-{number}"): 600.0 * number for number in range(1, 4)}
    memory = State(Memory(0.0, lengths=lengths))
    for had, more in ((1100.0, ""), (1300.0, ", more than half of the latest jobs needed")):
        state = make_state(options=(1,), iterations_total=math.inf, service=had)
        cluster = make_cluster(n1=8)
        snapshot = make_snapshot(cluster, state, profiles=(), policy_state=memory)
        clause = Assumptions(snapshot, policies.read("foresight")).of(state)[1]
        assert f" min of GPU time{more}; foresight" in clause


def test_unknown_speed_makes_length_unknown():
    (clause,) = assume(make_state(options=(1, 8)), profiles=())
    assert clause.startswith("no speed of it is known, nor how long its 1,000 iterations take; ")


def test_unmeasured_batch_sizes_are_named():
    batch = BatchRange(elastic=True, maximum=256)
    training = Training(iterations=1000, iterations_per_epoch=100)
    state = make_state(options=(1,), batch=batch, training=training)
    (clause,) = assume(state, "ones")
    assert clause == f"its speed with other batch sizes is not measured yet; ones {GUESSES}"
    larger = Profile(KNOWN.type._replace(batch_size=128), {Shape(1, 1, ""): Speed(1.0)})
    assert assume(state, "ones", profiles=(KNOWN, larger)) == ()
