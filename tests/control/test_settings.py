from dataclasses import dataclass
from functools import partial

import pytest

from dljob.control.settings import Settings, SettingsError, load_tree
from dljob.core.model import Mechanism

load = partial(load_tree, Settings())


def values(loaded):
    return {setting.path: setting for setting in loaded.described()}


def test_defaults_apply_without_settings():
    assert load().settings == Settings()
    assert {setting.origin for setting in load().described()} == {"default"}


def test_options_beat_the_environment_and_it_beats_the_file():
    document = {"policy": "fifo", "seed": 1, "pace": {"periodSeconds": 3}}
    environment = {"DLJOB_SEED": "2", "DLJOB_PACE_PERIOD_SECONDS": "4"}
    loaded = load(
        document, file="d.yaml", environment=environment, options={"pace.periodSeconds": 5}
    )
    assert loaded.settings.policy == "fifo"
    assert loaded.settings.seed == 2
    assert loaded.settings.pace.period_seconds == 5
    told = values(loaded)
    assert told["policy"].origin == "d.yaml"
    assert told["seed"].origin == "DLJOB_SEED"
    assert told["pace.periodSeconds"].origin == "--period-seconds"


def test_every_setting_is_documented():
    undocumented = [
        setting.path
        for setting in load().described()
        if not setting.documentation and not setting.path.startswith("costs.")
    ]
    assert undocumented == []


def test_dialing_can_be_set():
    assert load({"dialing": {"waitSeconds": 20}}).settings.dialing.wait_seconds == 20.0


def test_mechanism_is_read_as_its_value():
    assert load({"mechanism": "recreate"}).settings.mechanism is Mechanism.RECREATE


@pytest.mark.parametrize(
    ("document", "line"),
    [
        ({"polcy": "fifo"}, "polcy: there is no such setting; did you mean policy?"),
        ({"pace": 3}, "pace: there is no such setting; dljob config show lists all"),
        ({"seed": "many"}, "seed (f): is not a whole number of at least 0; correct it"),
        ({"seed": True}, "seed (f): is not a whole number of at least 0; correct it"),
        ({"seed": -1}, "seed (f): is not a whole number of at least 0; correct it"),
        ({"pace": {"lookSeconds": -1}}, "pace.lookSeconds (f): is not a number of at least 0;"),
        (
            {"pace": {"lookSeconds": float("inf")}},
            "pace.lookSeconds (f): is not a number of at least 0",
        ),
        ({"mechanism": "magic"}, "mechanism (f): is not in-place or recreate; correct"),
        ({"store": 5}, "store (f): is not a text; correct it, or leave it out"),
        ("policy", "is not a mapping; write it as name: value"),
        (
            {"dialing": {"waitSeconds": 0}},
            "dialing.waitSeconds (f): is not valid: wait_seconds is 0; it must be above 0; correct",
        ),
        ({"notify": {"on": ["done"]}}, "notify.on: has another name now; write notify.events"),
        # YAML reads on without quotes as true.
        ({"notify": {True: ["done"]}}, "notify.True: has another name now; write notify.events"),
    ],
)
def test_wrong_setting_is_refused_by_name(document, line):
    with pytest.raises(SettingsError) as caught:
        load(document, file="f")
    (told,) = caught.value.lines()
    assert line in told


def test_variable_with_a_former_name_is_refused():
    with pytest.raises(SettingsError, match=r"notify\.on: has another name now"):
        load(environment={"DLJOB_NOTIFY_ON": "done"})


def test_all_wrong_settings_are_reported_at_once():
    with pytest.raises(SettingsError) as caught:
        load({"seed": "x", "polcy": 1, "pace": {"lookSeconds": "y"}})
    assert len(caught.value.lines()) == 3


def test_credentials_are_hidden():
    loaded = load({"store": "mongodb://me:secret@db.example/dljob"})
    assert "secret" in loaded.settings.store
    assert "secret" not in str(values(loaded)["store"])


@dataclass(frozen=True, kw_only=True)
class Larger(Settings):
    watched: tuple[str, ...] = ()
    """Where."""
    virtual: bool = False
    """Whether."""


@pytest.mark.parametrize(
    ("given", "read"),
    [
        ({"watched": ["a", "b"]}, Larger(watched=("a", "b"))),
        ({"watched": "a, b"}, Larger(watched=("a", "b"))),
        ({"virtual": True}, Larger(virtual=True)),
        ({"virtual": "false", "seed": 3}, Larger(seed=3)),
    ],
)
def test_platform_adds_settings(given, read):
    assert load_tree(Larger(), given).settings == read


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"watched": 3}, "is not a list, of each a text"),
        ({"virtual": "perhaps"}, "is not true or false"),
    ],
)
def test_wrong_setting_of_a_platform_is_refused(given, told):
    with pytest.raises(SettingsError, match=told):
        load_tree(Larger(), given)


@pytest.mark.parametrize(
    "given",
    [
        {"document": {"limits": {"maxGpus": {"team-a": 8, "*": 2}, "maxPriority": {"*": -1}}}},
        {
            "environment": {
                "DLJOB_LIMITS_MAX_GPUS": "team-a=8, *=2",
                "DLJOB_LIMITS_MAX_PRIORITY": "*=-1",
            }
        },
        {"options": {"limits.maxGpus": "team-a=8,*=2", "limits.maxPriority": "*=-1"}},
    ],
    ids=["file", "environment", "options"],
)
def test_limits_are_given_by_namespace(given):
    limits = load(**given).settings.limits
    assert (limits.gpus_of("team-a"), limits.gpus_of("other")) == (8, 2)
    assert limits.priority_of("team-a") == -1


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"team-a": "many"}, "is not a mapping of names to a whole number"),
        ({"team-a": True}, "is not a mapping of names to a whole number"),
        ("8", "is not a mapping of names to a whole number"),
        ({"Team A": 8}, "'Team A' is no name of a namespace; name one, or write *"),
        ({"team-a": -1}, "team-a cannot have -1 GPUs; write 0 or more"),
    ],
)
def test_wrong_limits_are_refused_by_name(wrong, said):
    with pytest.raises(SettingsError) as caught:
        load({"limits": {"maxGpus": wrong}}, file="f")
    (told,) = caught.value.lines()
    assert told.startswith("limits.maxGpus (f): ")
    assert said in told
