"""Each package and each folder of tests says which parts of the deep tests a change of it needs."""

from pathlib import Path

from tests.running.needs import NEEDS, find_needs
from tests.running.parts import DEEP

ROOT = Path(__file__).resolve().parents[2]
GATE_ONLY = {"tests/data", "tests/gpu", "tests/reference", "tests/running"}
"""Folders whose tests are in the gate, or in ``make test-gpu``."""


def test_every_folder_has_its_parts():
    folders = [*ROOT.glob("operator/dl*"), *ROOT.glob("tests/*")]
    names = {
        str(place.relative_to(ROOT))
        for place in folders
        if place.is_dir() and place.name != "__pycache__"
    }
    assert names - GATE_ONLY <= set(NEEDS)


def test_every_part_exists_and_is_needed_by_a_change():
    assert {part for parts in NEEDS.values() for part in parts} == {part.name for part in DEEP}


def test_a_change_of_the_sidecar_needs_processes_nodes_chaos_and_attacks():
    needs = find_needs(["sidecar/dljob_sidecar/assembling.py", "README.md"])
    assert set(needs) == {"test-processes", "test-nodes", "chaos", "attack"}
    assert needs["chaos"] == ["sidecar"]
