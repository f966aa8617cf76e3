"""``dljob policies``: the description of each policy."""

from dlsim import policies


def test_every_policy_tells_where_it_is_from_what_it_needs_and_its_options(dljob):
    entries = {entry["name"]: entry for entry in dljob("policies", "-o", "json").data}
    assert list(entries) == list(policies.NAMES)
    for entry in entries.values():
        assert entry["paper"]
        assert entry["needs"]
        assert entry["does"].endswith(".")
    assert entries["tiresias"]["options"]["thresholds"] == [3250.0, 7200.0]
    assert entries["foresight"]["allowed"]["ageing"] == "a number from 0 to 2"
    # A law that is broken on purpose.
    assert entries["kube-pods"]["breaks"] == ["whole-gang"]
    assert entries["adaptive"]["breaks"] == []
    table = dljob("policies").stdout
    assert all(name in table for name in policies.NAMES)
    assert "thresholds=3250,7200" in " ".join(table.split())
