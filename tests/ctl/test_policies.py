"""``dljob policies``: the description of each policy."""

import re

from dljob.core.assuming import Assuming, Knowledge
from dljob.sim import policies


def test_every_policy_has_source_needs_and_options(dljob):
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


def test_wide_list_has_the_fallbacks_of_each_policy(dljob):
    printed = dljob("policies", "-o", "wide").stdout.partition("\nPolicies without a piece")[2]
    assert all(f"  {piece.name.lower()}: {piece.value}\n" in printed for piece in Knowledge)
    sentences = dict(re.findall(r"^  ([a-z]): (.+)$", printed, re.MULTILINE))
    rows = re.findall(rf"^  (\S+) {r' +([a-z-])' * len(Knowledge)}$", printed, re.MULTILINE)
    shown = {name: [sentences.get(letter, "-") for letter in letters] for name, *letters in rows}
    entries = {entry["name"]: entry for entry in dljob("policies", "-o", "json").data}
    for name in policies.NAMES:
        policy = policies.make(name)
        assumes = policy.assumes if isinstance(policy, Assuming) else {}
        assert shown[name] == [assumes.get(piece, "-") for piece in Knowledge]
        assert entries[name]["without"] == {key.name.lower(): does for key, does in assumes.items()}
