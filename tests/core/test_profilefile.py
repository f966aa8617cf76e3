import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dljob.core.documents.profilefile import ProfileFileError, parse, parse_all, render, render_all
from dljob.core.profiles import (
    FASTEST,
    LONGEST_COST_S,
    MOST_SHAPES,
    RECENT,
    SLOWEST,
    AccuracyPoint,
    AccuracySeen,
    Costs,
    CostSeen,
    CostTerm,
    JobType,
    Profile,
    Speed,
    SpeedSeen,
    fold,
)
from dljob_wire.messages import Shape
from tests.core.examples import few_examples

KIND = JobType("resnet50", "imagenet", 256)

names = st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), min_size=1, max_size=20)
speeds = st.floats(SLOWEST, FASTEST)
seconds = st.floats(0.0, LONGEST_COST_S)
shapes = st.builds(Shape, st.integers(1, 10_000), st.integers(1, 1000), st.just("") | names)
profiles = st.builds(
    Profile,
    st.builds(JobType, names, st.just("") | names, st.integers(0, 2**53)),
    speeds=st.dictionaries(
        shapes,
        st.builds(
            Speed,
            speeds,
            st.floats(0.0, 1e9),
            st.lists(speeds, max_size=RECENT).map(tuple),
            st.floats(0.0, 1e12),
        ),
        max_size=5,
    ),
    accuracy=st.dictionaries(st.floats(0.0, 1e17), st.floats(-1e99, 1e99), max_size=5).map(
        lambda points: tuple(AccuracyPoint(k, points[k]) for k in sorted(points))
    ),
    costs=st.none() | st.builds(Costs, checkpoint=seconds, pod_initialization_per_gpu=seconds),
    cost_samples=st.dictionaries(
        st.sampled_from([term.value for term in CostTerm]),
        st.lists(seconds, min_size=1, max_size=RECENT).map(tuple),
    ),
)


def document(**changes) -> dict[str, object]:
    """Make a profile of one type, with fields changed, or left out where they are None."""
    fields = {"kind": "Profile", "type": {"model": "resnet50"}, **changes}
    fields = {name: value for name, value in fields.items() if value is not None}
    return {"apiVersion": "dljob.io/v1alpha1", **fields}


def errors_of(wrong: object) -> tuple[str, ...]:
    with pytest.raises(ProfileFileError) as raised:
        parse_all(wrong)
    return raised.value.lines()


@few_examples(40)
@given(profiles)
def test_profile_survives_a_round_trip(profile: Profile):
    text = json.dumps(render(profile), allow_nan=False)
    assert parse(json.loads(text)).says_the_same_as(profile)


@few_examples(15)
@given(st.lists(profiles, max_size=3, unique_by=lambda profile: profile.type))
def test_several_profiles_are_one_list(several):
    text = json.dumps(render_all(several), allow_nan=False)
    read = parse_all(json.loads(text))
    assert [each.type for each in read] == sorted(each.type for each in several)
    by_type = {profile.type: profile for profile in several}
    assert all(each.says_the_same_as(by_type[each.type]) for each in read)


def test_omitted_fields_have_defaults():
    speed = {"gpus": 2, "iterationsPerSecond": 5}
    profile = parse(document(speeds=[speed], costs={"checkpoint": 3}))
    assert profile.speeds == {Shape(2): Speed(5.0)}
    assert profile.costs == Costs(checkpoint=3.0)


FOUR = {"gpus": 4, "iterationsPerSecond": 5.0}


@pytest.mark.parametrize(
    ("wrong", "line"),
    [
        (
            [],
            (
                "the document is a list, not a Profile;"
                " begin with apiVersion: dljob.io/v1alpha1 and kind: Profile"
            ),
        ),
        (
            document(speeds=[{"gpus": 1, "iterationsPerSecond": float("nan")}]),
            (
                "speeds[0].iterationsPerSecond: nan is not a finite number;"
                " give a number from 1e-09 to 1,000,000,000"
            ),
        ),
        (
            document(speeds=[{"gpus": 1, "iterationPerSecond": 5.0}]),
            (
                "speeds[0].iterationPerSecond: there is no such field;"
                " did you mean iterationsPerSecond?"
            ),
        ),
        (
            document(speeds=[FOUR, {"gpus": 2, "iterationsPerSecond": 3.0}, FOUR]),
            "speeds[2]: the speed of 4 GPUs is in the list twice; remove one of them",
        ),
        (
            document(accuracy=[{"iteration": 1, "value": 0.5}] * 2),
            "accuracy[1]: iteration 1 is in the list twice; remove one of them",
        ),
        (
            document(kind="ProfileList", items=[document()] * 2, type=None),
            "items[1].type: resnet50 is in the list twice; remove one of them",
        ),
        (
            document(kind="ProfileList", items=[document(speeds=[FOUR, FOUR])], type=None),
            "items[0].speeds[1]: the speed of 4 GPUs is in the list twice; remove one of them",
        ),
        (
            document(kind="DLJob", items=[], type=None),
            'kind: "DLJob" is not known here; write ProfileList',
        ),
    ],
)
def test_wrong_document_has_one_clear_line(wrong, line: str):
    assert errors_of(wrong) == (line,)


def test_source_comes_first():
    with pytest.raises(ProfileFileError, match=r"^mine\.json: type: it is missing; say of which"):
        parse({"apiVersion": "dljob.io/v1alpha1", "kind": "Profile"}, source="mine.json")


@pytest.mark.parametrize(
    "profile",
    [
        Profile(JobType("")),
        Profile(JobType("a" * 300)),
        Profile(KIND, {Shape(1): Speed(0.0)}),
        Profile(KIND, {Shape(1): Speed(float("inf"))}),
        Profile(KIND, accuracy=(AccuracyPoint(0.0, float("nan")),)),
        Profile(KIND, {Shape(gpus): Speed(1.0) for gpus in range(1, MOST_SHAPES + 2)}),
    ],
)
def test_unreadable_profile_is_not_written(profile: Profile):
    with pytest.raises(ProfileFileError, match="the profile of"):
        render(profile)


observations = st.one_of(
    st.builds(
        SpeedSeen,
        st.builds(Shape, st.integers(1, 10_000), st.integers(1, 999), st.just("V100" * 10)),
        st.floats(),
        st.floats(),
        st.floats(0.0, 1e12),
        st.booleans(),
    ),
    st.builds(AccuracySeen, st.floats(), st.floats()),
    st.builds(CostSeen, st.sampled_from(CostTerm), st.floats(), st.integers(0, 64)),
)


@few_examples(40)
@given(st.lists(observations, max_size=60))
def test_any_observation_can_be_written(seen):
    profile = Profile(KIND)
    for each in seen:
        profile = fold(profile, each)
    assert parse(render(profile)).says_the_same_as(profile)
