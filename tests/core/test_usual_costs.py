"""Unmeasured costs are the usual ones of other types."""

from dljob.core.predicting.predictor import find_costs
from dljob.core.profiles import Costs, CostSeen, CostTerm, JobType, Profile, fold

START, SAVE = CostTerm.PROCESS_INITIALIZATION, CostTerm.CHECKPOINT


def learn(name: str, **seconds: float) -> Profile:
    profile = Profile(JobType(name))
    for term, value in seconds.items():
        profile = fold(profile, CostSeen(CostTerm[term], value))
    return profile


A = learn("a", PROCESS_INITIALIZATION=20.0, CHECKPOINT=4.0)
B = learn("b", PROCESS_INITIALIZATION=40.0, CHECKPOINT=6.0)
PROFILES = {each.type: each for each in (A, B)}


def test_new_type_has_the_usual_costs():
    costs = find_costs(PROFILES, None, defaults=Costs(pod_initialization=3.0))
    assert (costs.process_initialization, costs.checkpoint) == (30.0, 5.0)
    assert costs.pod_initialization == 3.0


def test_only_missing_terms_are_usual():
    partly = learn("c", PROCESS_INITIALIZATION=90.0)
    costs = find_costs({**PROFILES, partly.type: partly}, partly, defaults=Costs())
    assert (costs.process_initialization, costs.checkpoint) == (90.0, 5.0)


def test_offline_costs_are_complete():
    offline = Profile(JobType("d"), costs=Costs(process_initialization=7.0))
    assert find_costs(PROFILES, offline, defaults=Costs()) is offline.costs


def test_without_measurements_settings_hold():
    defaults = Costs(checkpoint=2.0)
    assert find_costs({}, None, defaults=defaults) is defaults
