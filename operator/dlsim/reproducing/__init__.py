"""
The evaluations of papers, played again: each paper's figures and ours, side by side.

``dljob reproduce NAME`` calls one of :data:`REPRODUCTIONS`. One is a file with a function that
takes a watch and returns a :class:`~dlsim.reproducing.findings.Reproduction`, and a line here.
What was assumed for each stands in ``docs/reproduction.md``.
"""

from collections.abc import Callable, Mapping

from dlsim.reproducing import ones, peers, sidecar
from dlsim.reproducing.findings import Reproduction
from dlsim.simulating import Watch

REPRODUCTIONS: Mapping[str, Callable[[Watch | None], Reproduction] | None] = {
    "sidecar": sidecar.reproduce,
    "gang": None,
    "dragon": None,
    "afs": None,
    "ones": ones.reproduce,
    "peers": peers.reproduce,
}
"""By the name that users type; ``None`` is to come."""
