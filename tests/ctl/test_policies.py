"""``dljob policies``: the description of each policy."""

from dlcore import policies


def test_every_policy_tells_where_it_is_from_and_what_it_needs(dljob):
    entries = dljob("policies", "-o", "json").data
    assert [entry["name"] for entry in entries] == list(policies.NAMES)
    for entry in entries:
        assert entry["paper"]
        assert entry["needs"]
        assert entry["does"].endswith(".")


def test_options_are_told_with_their_defaults(dljob):
    entries = {entry["name"]: entry for entry in dljob("policies", "-o", "json").data}
    assert entries["tiresias"]["options"]["thresholds"] == [3250.0, 7200.0]
    assert entries["foresight"]["allowed"]["ageing"] == "a number from 0 to 2"
    assert "thresholds=3250,7200" in " ".join(dljob("policies").stdout.split())


def test_a_law_that_is_broken_on_purpose_is_told(dljob):
    entries = {entry["name"]: entry for entry in dljob("policies", "-o", "json").data}
    assert entries["kube-pods"]["breaks"] == ["whole-gang"]
    assert entries["adaptive"]["breaks"] == []


def test_the_table_names_all_of_them(dljob):
    table = dljob("policies").stdout
    assert all(name in table for name in policies.NAMES)
