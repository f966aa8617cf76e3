"""Profiles of types of jobs can be shown, carried from store to store, and forgotten."""

from functools import partial

import pytest
import yaml

from dljob.core.profiles import AccuracyPoint, Costs, JobType, Profile, Speed
from dljob.sim.inputs import shipped
from dljob.store.opening import open_store
from dljob_wire.messages import Shape
from tests.ctl.test_jobs import table

RESNET, BERT = JobType("resnet", "imagenet", 256), JobType("bert")

KNOWN = (
    Profile(
        RESNET,
        {
            Shape(1, 1, "V100"): Speed(5.0, 3.0, (4.9, 5.0, 5.1), 1000.0),
            Shape(4, 2, "V100"): Speed(17.5),
        },
        accuracy=(AccuracyPoint(100.0, 0.5), AccuracyPoint(2000.0, 0.75)),
        costs=Costs(checkpoint=1.5),
        cost_samples={"checkpoint": (1.4, 1.5, 1.6)},
    ),
    Profile(BERT, {Shape(2, 1, ""): Speed(0.5)}),
)


@pytest.fixture
def store(tmp_path, monkeypatch):
    """A store with two profiles, at the address that it is at by default."""
    monkeypatch.setenv("DLJOB_STATE", str(tmp_path))
    monkeypatch.delenv("DLJOB_STORE", raising=False)
    return fill(tmp_path / "profiles.db", *KNOWN)


def fill(path, *profiles):
    opened = open_store(str(path), environment={})
    for profile in profiles:
        opened.change(profile.type, partial(take, profile))
    opened.close()
    return path


def take(profile, _known):
    return profile


def types(result):
    return [each["type"] for each in result.data]


def test_all_types_are_listed(dljob, store):
    bert, resnet = table(dljob("profiles", "list").stdout)
    assert resnet.pop("SEEN").endswith("d")
    assert resnet == {
        "TYPE": "resnet/imagenet/256",
        "SHAPES": "2",
        "GPUS": "1,4",
        "FASTEST": "17.5 it/s",
        "CURVE": "2 points",
        "COSTS": "1 of 7",
    }
    assert (bert["TYPE"], bert["CURVE"], bert["COSTS"], bert["SEEN"]) == ("bert", "-", "-", "-")
    assert types(dljob("profiles", "list", "-o", "json")) == ["bert", "resnet/imagenet/256"]


def test_profile_shows_its_measurements(dljob, store):
    text = dljob("profiles", "show", "resnet/imagenet/256").stdout
    first, second = table("".join(text.partition("Speeds:\n")[2].splitlines(True)[:3]))
    assert (first["GPUS"], first["NODES"], first["TYPE"]) == ("1", "1", "V100")
    assert (first["SPEED"], first["OBSERVATIONS"]) == ("5 it/s", "3")
    assert (second["GPUS"], second["NODES"], second["SEEN"]) == ("4", "2", "-")
    assert "Learning curve: 2 points, from 0.5 at iteration 100 to 0.75 at 2,000\n" in text
    assert table(text.partition("as measured:\n")[2])[0] == {
        "TERM": "checkpoint",
        "MEDIAN": "1.5s",
        "OBSERVATIONS": "3",
    }


def test_unknown_type_suggests_the_nearest(dljob, store):
    for verb in ("show", "export", "forget"):
        result = dljob("profiles", verb, "bert", "resnet/imagenet")
        assert (result.status, result.stdout) == (1, "")
        assert result.stderr == (
            "dljob: resnet/imagenet: there is no profile of this type;"
            " did you mean resnet/imagenet/256?\n"
        )
    assert types(dljob("profiles", "list", "-o", "json")) == ["bert", "resnet/imagenet/256"]


def test_export_and_import_lose_nothing(dljob, store, tmp_path):
    for output in ("yaml", "json"):
        file, other = tmp_path / f"profiles.{output}", tmp_path / f"{output}.db"
        file.write_text(dljob("profiles", "export", "-o", output).stdout, encoding="utf-8")
        result = dljob("profiles", "import", file, "--store", other)
        assert result.stdout == "bert imported\nresnet/imagenet/256 imported\n"
        opened = open_store(str(other), environment={})
        there = opened.profiles()
        opened.close()
        for profile in KNOWN:
            found = there[profile.type].profile
            assert found is not None
            assert found.says_the_same_as(profile)


def test_import_keeps_known_speeds_without_replace(dljob, store, tmp_path):
    file = tmp_path / "bert.yaml"
    document = yaml.safe_load(dljob("profiles", "export", "bert").stdout)
    document["items"][0]["speeds"][0]["iterationsPerSecond"] = 7.0
    file.write_text(yaml.safe_dump(document), encoding="utf-8")
    result = dljob("profiles", "import", file)
    assert (result.status, result.stdout) == (0, "")
    assert result.stderr == "1 of 1 stay as they were; nothing in them is new\n"
    assert dljob("profiles", "list", "-o", "json").data[0]["fastestIterationsPerSecond"] == 0.5
    assert dljob("profiles", "import", file, "--replace").stdout == "bert replaced\n"
    assert dljob("profiles", "list", "-o", "json").data[0]["fastestIterationsPerSecond"] == 7.0
    # What is not known yet is added to what is.
    document["items"][0]["speeds"].append({"gpus": 8, "iterationsPerSecond": 3.0})
    file.write_text(yaml.safe_dump(document), encoding="utf-8")
    assert dljob("profiles", "import", file).stdout == "bert completed\n"
    assert dljob("profiles", "list", "-o", "json").data[0]["gpus"] == [2, 8]
    assert dljob("profiles", "forget", "bert").stdout == "bert forgotten\n"
    assert types(dljob("profiles", "list", "-o", "json")) == ["resnet/imagenet/256"]


def test_all_that_is_shipped_comes_in_by_one_command(dljob, tmp_path, monkeypatch):
    monkeypatch.setenv("DLJOB_STATE", str(tmp_path))
    result = dljob("profiles", "list")
    assert (result.stdout, "dljob profiles import --shipped" in result.stderr) == ("", True)
    result = dljob("profiles", "import", "--shipped")
    assert len(result.stdout.splitlines()) == len(shipped.load_shipped()) > 100
    assert len(types(dljob("profiles", "list", "-o", "json"))) == len(shipped.load_shipped())


def test_a_file_of_no_profiles_is_refused_before_anything_is_changed(dljob, store, tmp_path):
    file = tmp_path / "wrong.yaml"
    file.write_text(
        "apiVersion: dljob.io/v1alpha1\nkind: Profile\ntype: {model: new}\n"
        "---\napiVersion: dljob.io/v1alpha1\nkind: Profile\ntype: {}\n",
        encoding="utf-8",
    )
    result = dljob("profiles", "import", file)
    assert (result.status, result.stdout) == (1, "")
    assert result.stderr.startswith(f"dljob: {file}:5: type.model: ")
    assert types(dljob("profiles", "list", "-o", "json")) == ["bert", "resnet/imagenet/256"]
    assert dljob("profiles", "import").status == 2


def test_unusable_store_is_reported(dljob, tmp_path):
    (tmp_path / "no-store").write_text("this is no database at all, for certain" * 50)
    result = dljob("profiles", "list", "--store", tmp_path / "no-store")
    assert (result.status, result.stdout) == (1, "")
    assert result.stderr.startswith(f"dljob: {tmp_path}/no-store: ")
    assert result.stderr.count("\n") == 1


def test_the_store_of_the_dljob_up_that_is_meant_is_used(played):
    """The one behind it says in its settings which that is; it has the usual one."""
    fill(played.up.root / "profiles.db", *KNOWN)
    assert len(played("profiles", "list", "-o", "json").data) == 2
