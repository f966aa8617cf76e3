"""The assumptions of a policy about a job that lacks knowledge, in the words for users."""

import math
from pathlib import Path
from typing import Any

import pytest

from dlcore import policies
from dlcore.assuming import (
    AS_LONG_AGAIN,
    GUESSES,
    USUAL_CURVE,
    Assumes,
    Assuming,
    Assumptions,
    Knowledge,
)
from dlcore.model import BatchRange, JobState, Training
from dlcore.profiles import JobType, Profile, Speed
from dlwire.messages import Shape
from tests.builders import make_cluster, make_profile, make_snapshot, make_state

DOCS = Path(__file__).resolve().parents[2] / "docs" / "policies.md"

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


# --- every policy -------------------------------------------------------------------------


@pytest.mark.parametrize("name", policies.NAMES)
def test_a_policy_that_needs_something_says_what_it_does_without(name: str):
    needs, assumes = policies.make(name).needs, assumes_of(name)
    assert bool(assumes) or needs == "nothing"
    assert (Knowledge.LENGTH in assumes) == any(
        word in needs for word in ("iterations", "lengths", "sizes")
    )
    assert (Knowledge.SPEED in assumes) == ("speeds" in needs)
    assert (Knowledge.MEASURED in assumes) == ("speeds" in needs)


@pytest.mark.parametrize("name", policies.NAMES)
def test_every_fallback_is_told_of_a_job_of_which_nothing_is_known(name: str):
    blank = make_state(
        iterations_total=math.inf, batch=BatchRange(elastic=True, maximum=256), options=(1, 2)
    )
    told = assume(blank, name, profiles=())
    fallbacks = {k: v for k, v in assumes_of(name).items() if k is not Knowledge.MEASURED}
    assert [each.partition(f"; {name} ")[2] for each in told] == list(fallbacks.values())
    assert all(each.isprintable() and not each.endswith(".") for each in told)


@pytest.mark.parametrize("name", policies.NAMES)
def test_nothing_is_told_of_a_job_of_which_all_is_known(name: str):
    training = Training(iterations=1000, iterations_per_epoch=100)
    assert assume(make_state(options=(1, 2, 4), training=training), name) == ()


def test_the_documentation_has_a_row_for_each_policy_with_its_fallbacks():
    text = DOCS.read_text(encoding="utf-8")
    for name in policies.NAMES:
        assumes = assumes_of(name)
        cells = (assumes.get(piece, "") for piece in Knowledge)
        needed = (cell or "not used" for cell in cells)
        assert f"| `{name}` | {' | '.join(needed)} |\n" in text


# --- what a job lacks ---------------------------------------------------------------------


def test_a_job_of_unknown_length_is_told_of_the_lengths_of_others():
    (clause,) = assume(make_state(options=(1,), iterations_total=math.inf))
    assert clause == (
        "its length is unknown; foresight assumes the lengths of jobs that ended before, each as"
        " likely as the others"
    )
    assert assume(make_state(options=(1,), iterations_total=math.inf), "lyra") == (
        f"its length is unknown; lyra {AS_LONG_AGAIN}",
    )


def test_a_length_that_is_predicted_is_told_with_its_bounds():
    state = make_state(options=(1,), iterations_total=1000.0, iterations_between=(900.0, 1200.0))
    (clause,) = assume(state)
    assert clause == (
        "its length follows from its target; foresight uses a prediction, between 900 and 1,200"
        " iterations"
    )
    assert assume(state, "sia") == ()


def test_numbers_of_gpus_that_were_never_measured_are_named():
    def told(*options: int) -> str:
        (clause,) = assume(make_state(options=options))
        return clause

    assert told(2, 8) == f"its speed on 8 GPUs was never measured; foresight {GUESSES}"
    assert told(5, 8).startswith("its speed on 5 or 8 GPUs was never")
    assert told(5, 6, 7, 8).startswith("its speed on 5, 6, 7 or 8 GPUs was never")
    # One between two measured ones is a guess as well, though a good one.
    assert told(1, 3).startswith("its speed on 3 GPUs was never")
    # More than the cluster has are of no interest.
    assert assume(make_state(options=(4, 8)), n1=4) == ()


def test_many_numbers_of_gpus_are_counted():
    (clause,) = assume(make_state(options=tuple(range(1, 9))))
    assert clause.startswith("its speed on 5 of its numbers of GPUs was never measured")


def test_types_of_gpu_are_named_where_there_are_several():
    shapes = {Shape(1, 1, "V100"): 2.0, Shape(2, 1, "V100"): 3.5, Shape(1, 1, "P100"): 1.0}
    kind = JobType("resnet")
    profile = Profile(kind, {shape: Speed(speed) for shape, speed in shapes.items()})
    nodes: dict[str, Any] = {"n1": (2, "V100"), "n2": (2, "P100")}
    (clause,) = assume(make_state(options=(1, 2)), profiles=(profile,), **nodes)
    assert clause.startswith("its speed on 2 GPUs was never measured")
    nothing = Profile(kind, {Shape(4, 1, "K80"): Speed(1.0)})
    (clause,) = assume(make_state(options=(1, 2)), profiles=(nothing,), **nodes)
    assert clause.startswith("its speed on 1 or 2 GPUs of type P100 or V100 was never measured")
    held = make_state(options=(1, 2), holds={"n1": (0,)}, gpu_type="V100")
    assert assume(held, profiles=(profile,), **nodes) == ()


def test_what_a_running_job_shows_is_not_missing():
    state = make_state(options=(1, 8), holds={"n1": range(8)})
    assert assume(state) == ()
    adjusting = make_state(options=(1, 8), holds={"n1": range(8)}, adjusting=True)
    assert len(assume(adjusting)) == 1
    assert assume(state, profiles=()) == (
        f"no speed of it is known but the present one; foresight {USUAL_CURVE}",
    )


def test_a_job_without_any_place_on_this_cluster_is_told_nothing_of_speeds():
    assert assume(make_state(options=(1,), types=("H100",)), profiles=()) == ()


def test_jobs_that_are_alike_share_what_was_found():
    states = [make_state(f"job-{n}", options=(8,)) for n in range(3)]
    other = make_state("other", options=(1,))
    snapshot = make_snapshot(make_cluster(n1=8), *states, other, profiles=(KNOWN,))
    found = Assumptions(snapshot, policies.make("foresight"))
    assert len({found.of(state) for state in states}) == 1
    assert found.of(other) == ()


def test_other_batches_are_missing_until_one_was_measured():
    batch = BatchRange(elastic=True, maximum=256)
    training = Training(iterations=1000, iterations_per_epoch=100)
    state = make_state(options=(1,), batch=batch, training=training)
    (clause,) = assume(state, "ones")
    assert clause == f"its speed with other batch sizes was never measured; ones {GUESSES}"
    larger = Profile(KNOWN.type._replace(batch_size=128), {Shape(1, 1, ""): Speed(1.0)})
    assert assume(state, "ones", profiles=(KNOWN, larger)) == ()


def test_afs_p_supposes_what_its_option_says():
    state = make_state(options=(1, 8))
    (linear,) = assume(state, "afs-p")
    assert linear.endswith(
        "afs-p supposes that beyond the measured numbers of GPUs each GPU adds as much as before"
    )
    (guess,) = assume(state, "afs-p:overestimate=false")
    assert guess.endswith(f"afs-p {GUESSES}")


def test_a_policy_that_says_nothing_is_told_nothing_of():
    class Silent:
        name = "silent"

    state = make_state(iterations_total=math.inf)
    snapshot = make_snapshot(make_cluster(n1=4), state)
    assert Assumptions(snapshot, Silent()).of(state) == ()  # type: ignore[arg-type]
