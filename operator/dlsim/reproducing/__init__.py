"""
The evaluations of papers, played again: each paper's figures and ours, side by side.

``dljob reproduce NAME`` calls one of :data:`REPRODUCTIONS`. One is a file with a function that
takes a watch and returns a :class:`~dlsim.reproducing.findings.Reproduction`, and a line here.
What was assumed for each stands in ``docs/reproduction.md``.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from dlsim.reproducing import afs, peers, sidecar
from dlsim.reproducing.findings import Reproduction
from dlsim.simulating import Watch

REPRODUCTIONS: Mapping[str, Callable[[Watch | None], Reproduction] | None] = {
    "sidecar": sidecar.reproduce,
    "gang": None,
    "dragon": None,
    "afs": afs.reproduce,
    "ones": None,
    "peers": peers.reproduce,
}
"""By the name that users type; ``None`` is to come."""

FROM_TRACES: Mapping[str, Callable[[Watch | None, Sequence[Path]], Reproduction]] = {
    "afs": afs.reproduce_from,
}
"""Those that play other traces than the shipped ones if they are given a folder of them."""
