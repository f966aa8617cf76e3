import json
from collections.abc import Callable

from dljob.core.documents import profilefile
from dljob.core.profiles import (
    MOST_SHAPES,
    AccuracyPoint,
    Costs,
    CostSeen,
    CostTerm,
    JobType,
    Profile,
    Speed,
)
from dljob.sim.inputs.shipped import load_shipped
from dljob.store.importing import ImportResult, forget_profile, import_profiles
from dljob.store.store import fold_into
from dljob_wire.messages import Shape
from tests.control.store.memory import MemoryStore
from tests.control.store.places import KIND, OTHER, SHAPE, Place, speed_seen

OFFLINE = Profile(
    KIND,
    speeds={SHAPE: Speed(100.0), Shape(8, 1, "V100"): Speed(180.0)},
    accuracy=(AccuracyPoint(10.0, 0.5),),
    costs=Costs(checkpoint=60.0),
)


def test_exported_profiles_can_be_imported(place: Place):
    store = place.open()
    for kind in (KIND, OTHER):
        fold_into(store, kind, observations=[speed_seen(5.0), CostSeen(CostTerm.CHECKPOINT, 3.0)])
    known = [stored.profile for stored in store.profiles().values() if stored.profile is not None]
    text = json.dumps(profilefile.render_all(known))
    elsewhere = MemoryStore()
    done = import_profiles(elsewhere, profilefile.parse_all(json.loads(text)))
    assert done == ImportResult(added=(OTHER, KIND))
    for kind, stored in elsewhere.profiles().items():
        original = store.profiles()[kind].profile
        assert stored.profile is not None
        assert original is not None
        assert stored.profile.says_the_same_as(original)


def test_import_fills_gaps_and_keeps_measurements():
    store = MemoryStore()
    fold_into(store, KIND, observations=[speed_seen(5.0)])
    assert import_profiles(store, [OFFLINE]) == ImportResult(changed=(KIND,))
    profile = store.profiles()[KIND].profile
    assert profile is not None
    assert profile.speeds[SHAPE].recent == (5.0,)
    assert profile.speeds[Shape(8, 1, "V100")] == Speed(180.0)
    assert profile.accuracy == OFFLINE.accuracy
    assert profile.costs == OFFLINE.costs
    assert import_profiles(store, [OFFLINE]) == ImportResult(kept=(KIND,))


def test_measured_and_imported_costs_are_not_mixed():
    store = MemoryStore()
    fold_into(store, KIND, observations=[CostSeen(CostTerm.POD_TERMINATION, 7.0)])
    import_profiles(store, [OFFLINE])
    profile = store.profiles()[KIND].profile
    assert profile is not None
    assert profile.costs == Costs(pod_termination=7.0)
    assert profile.cost_samples == {"pod_termination": (7.0,)}


def test_import_may_replace_knowledge():
    store = MemoryStore()
    fold_into(store, KIND, observations=[speed_seen(5.0)])
    assert import_profiles(store, [OFFLINE], instead=True) == ImportResult(changed=(KIND,))
    profile = store.profiles()[KIND].profile
    assert profile is not None
    assert profile.says_the_same_as(OFFLINE)
    assert import_profiles(store, [OFFLINE], instead=True) == ImportResult(kept=(KIND,))


def test_import_keeps_the_bounds():
    store = MemoryStore()
    fold_into(store, KIND, observations=[speed_seen(5.0)])
    many = {Shape(gpus, 1, "P100"): Speed(1.0) for gpus in range(1, MOST_SHAPES + 1)}
    import_profiles(store, [Profile(KIND, many)])
    profile = store.profiles()[KIND].profile
    assert profile is not None
    assert len(profile.speeds) == MOST_SHAPES
    assert SHAPE in profile.speeds


def test_shipped_profiles_can_be_imported(make_place: Callable[[str], Place]):
    shipped = load_shipped()
    store = make_place("sqlite").open()
    assert import_profiles(store, shipped.values()) == ImportResult(added=tuple(shipped))
    for job_type, stored in store.profiles().items():
        assert stored.profile is not None
        assert stored.profile.says_the_same_as(shipped[job_type])


def test_forgetting_reports_whether_a_profile_existed(place: Place):
    store = place.open()
    fold_into(store, KIND, observations=[speed_seen()])
    assert forget_profile(store, KIND)
    assert not forget_profile(store, KIND)
    assert not forget_profile(store, JobType("unheard of"))
    assert store.profiles() == {}
