"""
Which parts of ``make deep`` a change needs, by the files that it touches: what ``make which-tests`` prints.

The gate runs for every change; a release needs all parts.
"""

import subprocess
import sys
from collections.abc import Iterable

from tests.running.output import say

MACHINE = ("test-processes", "chaos")
CLUSTER = ("test-control-plane", "test-nodes")
NEEDS: dict[str, tuple[str, ...]] = {
    "operator/dljob/api": ("test-processes",),
    "addons/lab/dljob_lab/policies": ("test-slow", "test-long", "bench"),
    "operator/dljob/control": (*MACHINE, *CLUSTER, "bench"),
    "operator/dljob/core": ("test-slow", "test-long", "bench"),
    "operator/dljob/client": ("test-slow", "test-processes", "test-control-plane"),
    "operator/dljob/local/cloud": ("test-processes",),
    "operator/dljob/cli": ("test-slow", "test-processes", "test-control-plane"),
    "addons/gangs/dljob_gangs": ("test-control-plane",),
    "operator/dljob": ("test-frameworks", "test-processes"),
    "operator/dljob/kube": (*CLUSTER, "bench"),
    "operator/dljob/local": (*MACHINE, "attack"),
    "operator/dljob/operator": (*CLUSTER, "chaos", "bench"),
    "addons/lab/dljob_lab": ("test-slow", "test-processes"),
    "addons/mcp": ("test-processes", "test-control-plane"),
    "addons/web/dljob_web/portal": ("test-control-plane",),
    "operator/dljob/sim": ("test-slow", "test-long", "bench"),
    "operator/dljob/store": ("test-processes", "chaos"),
    "addons/web/dljob_web": ("test-processes", "test-control-plane"),
    "sidecar": (*MACHINE, "test-nodes", "attack"),
    "benchmarks": ("bench",),
    "examples": ("test-frameworks", "test-processes", "test-nodes"),
    "manifests": CLUSTER,
    "crds": CLUSTER,
    "Dockerfile": ("test-nodes",),
    "profiles": ("test-slow", "test-long"),
    "requirements": ("test-slow", *MACHINE, *CLUSTER),
    "tests/attack": ("attack",),
    "tests/chaos": ("chaos",),
    "tests/chart": CLUSTER,
    "tests/cluster": ("test-nodes",),
    "tests/cloud": ("test-processes", "test-control-plane"),
    "tests/control": ("test-slow", "test-processes"),
    "tests/core": ("test-slow",),
    "tests/ctl": ("test-slow", "test-processes", "test-control-plane"),
    "tests/examples": ("test-nodes",),
    "tests/hostile": ("attack", "test-processes"),
    "tests/local": ("test-processes", "chaos"),
    "tests/operator": ("test-control-plane", "chaos"),
    "scripts/release": ("test-processes",),
    "images.lock": ("test-processes",),
    "tests/packages": ("test-processes",),
    "tests/released": ("test-processes",),
    "addons/web/tests/portal": ("test-control-plane",),
    "tests/project": ("test-slow",),
    "tests/servers": CLUSTER,
    "tests/sidecar": ("test-processes", "chaos"),
    "tests/sim": ("test-slow", "test-long"),
    "addons/web/tests": ("test-processes",),
}
"""By the begin of a path."""
BASE = "main"


def find_needs(files: Iterable[str]) -> dict[str, list[str]]:
    """The parts that changed files need, each with the places that need it."""
    needs: dict[str, list[str]] = {}
    for place, parts in NEEDS.items():
        if any(file.startswith(place) for file in files):
            for part in parts:
                needs.setdefault(part, []).append(place)
    return needs


def list_changed(base: str) -> list[str]:
    """The files that differ from where this branch left the base, uncommitted ones included."""
    words = ("git", "merge-base", base, "HEAD")
    left = subprocess.run(words, capture_output=True, text=True, check=True, timeout=60)
    names = ("git", "diff", "--name-only", left.stdout.strip())
    changed = subprocess.run(names, capture_output=True, text=True, check=True, timeout=60)
    return changed.stdout.split()


def main(words: list[str]) -> int:
    files = list_changed(words[0] if words else BASE)
    say(f"make test  # {len(files)} files changed")
    for part, places in sorted(find_needs(files).items()):
        say(f"make {part}  # {', '.join(places)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
