"""
The layers inside each package: an arrow that points up is refused, and so is a room without a place.

``lint-imports`` holds the contracts against the code as it is. Here each is tried on code that breaks it.
"""

import copy
import itertools
import tomllib
from pathlib import Path
from typing import Any

import grimp
import pytest
from importlinter.contracts.layers import LayersContract

ROOT = Path(__file__).resolve().parents[2]
LINTER = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"][
    "importlinter"
]
PACKAGES = LINTER["root_packages"]
INSIDE = {
    contract["containers"][0]: contract
    for contract in LINTER["contracts"]
    if contract["type"] == "layers" and "containers" in contract
}


@pytest.fixture(scope="module")
def whole_graph() -> grimp.ImportGraph:
    return grimp.build_graph(*PACKAGES, cache_dir=None)


@pytest.fixture
def graph(whole_graph: grimp.ImportGraph) -> grimp.ImportGraph:
    """The imports of the code, to be changed by one test."""
    return copy_of(whole_graph)


def copy_of(graph: grimp.ImportGraph) -> grimp.ImportGraph:
    return copy.deepcopy(graph)


def is_kept(package: str, graph: grimp.ImportGraph) -> bool:
    options: dict[str, Any] = {
        name: value for name, value in INSIDE[package].items() if name not in {"id", "type"}
    }
    # As the tool itself hands it over, in words.
    options["exhaustive"] = str(options["exhaustive"]).lower()
    session = {"root_packages": PACKAGES}
    contract = LayersContract(options["name"], session_options=session, contract_options=options)
    # It takes ignored imports out of what it checks.
    return contract.check(copy_of(graph), verbose=False).kept


def layers(package: str) -> list[list[str]]:
    """The rooms and modules of a package by layer, highest first."""
    return [
        [f"{package}.{name}" for name in layer.split(" | ")] for layer in INSIDE[package]["layers"]
    ]


def test_every_package_has_layers_and_keeps_them_and_every_room_needs_a_place(graph):
    for package in PACKAGES:
        assert INSIDE[package]["exhaustive"] is True
        assert is_kept(package, graph), package
    for package in PACKAGES:
        graph.add_module(f"{package}.attic")
        assert not is_kept(package, graph), package


def test_an_arrow_up_is_refused_from_each_layer(graph: grimp.ImportGraph):
    for package in PACKAGES:
        for above, below in itertools.pairwise(layers(package)):
            graph.add_import(importer=below[0], imported=above[0])
            assert not is_kept(package, graph), f"{below[0]} -> {above[0]}"
            graph.remove_import(importer=below[0], imported=above[0])
