"""Each extra alone, and none, brings the packages that its part of DLJob imports."""

import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Iterator

import pytest

from tests.packages.distributions import LONGEST_S, ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]

CLUSTER, MONGO = {"dljob.client.cluster", "dljob_web.portal"}, {"dljob.store.mongo"}
PLOTS = {
    *("dljob_lab.axes", "dljob_lab.comparing.bar_charts"),
    *("dljob_lab.demonstrating.pictures", "dljob_lab.plots"),
    *("dljob_lab.reproducing.drawing", "dljob_lab.reproducing.pictures"),
}
SIM = {"dljob_lab.reproducing.sidecar.fitting"}
OPERATOR = {*CLUSTER, *MONGO, "dljob_gangs", "dljob.kube", "dljob.operator"}
ALL = OPERATOR | PLOTS | SIM

PARTS = {
    "": set(),
    "cluster": CLUSTER,
    "mongo": MONGO,
    "operator": OPERATOR,
    "plots": PLOTS,
    "sim": SIM,
    "all": ALL,
}
"""The packages and modules of ours that need the packages of an extra; all others import without one."""

IMPORT_ALL = """
import importlib, json, os, pkgutil, sys

missing, ours, extras = json.loads(sys.argv[1])
blocked = set(missing)

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in blocked:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

def load(name):
    "Import a module and all below it; list those that lack a package."
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError:
        return [name]
    below = pkgutil.iter_modules(getattr(module, "__path__", []), f"{name}.")
    return [each for found in below for each in load(found.name) if "__main__" not in each]

sys.meta_path.insert(0, Missing())
without = [each for name in ours for each in load(name)]
for extra, brings in extras.items():
    # A fork has the modules that need no extra, so that they are imported once.
    if child := os.fork():
        os.waitpid(child, 0)
        continue
    blocked -= set(brings)
    print(json.dumps([extra, [each for name in without for each in load(name)]]), flush=True)
    os._exit(0)
"""


def find_packages(extra: str) -> Iterator[str]:
    """List the packages that an extra brings, also through other extras."""
    for requirement in EXTRAS[extra] if extra else ():
        name, _, others = requirement.partition("[")
        if name == PROJECT["name"]:
            for other in others.rstrip("]").split(","):
                yield from find_packages(other)
        else:
            yield name.partition(">")[0]


@pytest.mark.processes
@pytest.mark.story
def test_each_extra_alone_is_enough_for_its_part():
    assert set(EXTRAS) == set(PARTS) - {""}
    # All modules of dljob-mcp need the packages that it brings itself.
    ours = {path.parent.name for path in ROOT.glob("addons/*/dl*/__init__.py")} - {"dljob_mcp"}
    ours.add("dljob")
    brings = {extra: list(find_packages(extra)) for extra in PARTS}
    told = subprocess.run(
        [sys.executable, "-c", IMPORT_ALL, json.dumps([brings["all"], sorted(ours), brings])],
        env={"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
        timeout=LONGEST_S,
    )
    lacking = dict(map(json.loads, told.stdout.splitlines()))
    assert set(lacking) == set(PARTS)
    for extra, modules in lacking.items():
        parts = {
            next((part for part in ALL if f"{each}.".startswith(f"{part}.")), each)
            for each in modules
        }
        assert parts == ALL - PARTS[extra], (extra, modules)
