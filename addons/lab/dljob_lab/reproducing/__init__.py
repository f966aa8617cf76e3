"""
The evaluations of papers, played again: each paper's figures and ours, side by side.

``dljob reproduce NAME`` calls one of :data:`REPRODUCTIONS`. One is a file with a function that
takes a watch and returns a :class:`~dljob_lab.reproducing.findings.Reproduction`, and a line here.
``docs/reproduction.md`` links the assumptions of each.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from dljob.sim.simulating import Watch
from dljob_lab.reproducing import (
    dragon,
    gang,
    ones,
    peers,
    pollux,
    rubick,
    shockwave,
)
from dljob_lab.reproducing.afs import evaluation as afs
from dljob_lab.reproducing.findings import Reproduction
from dljob_lab.reproducing.sidecar import evaluation as sidecar

REPRODUCTIONS: Mapping[str, Callable[[Watch | None], Reproduction]] = {
    "sidecar": sidecar.reproduce,
    "gang": gang.reproduce,
    "dragon": dragon.reproduce,
    "afs": afs.reproduce,
    "ones": ones.reproduce,
    "sia": partial(pollux.reproduce, world="sia"),
    "shockwave": shockwave.reproduce,
    "rubick": rubick.reproduce,
    "pollux": pollux.reproduce,
    "peers": peers.reproduce,
}
"""By the name that users type."""

WHOLE: Mapping[str, Callable[[Watch | None], Reproduction]] = {
    "afs": partial(afs.reproduce, is_whole=True),
    "sia": partial(pollux.reproduce, world="sia", is_whole=True),
    "rubick": partial(rubick.reproduce, is_whole=True),
    "pollux": partial(pollux.reproduce, is_whole=True),
    "ones": partial(ones.reproduce, is_whole=True),
}
"""All of those of which the usual form leaves out what takes long (``--full``)."""

FROM_TRACES: Mapping[str, Callable[[Watch | None, Sequence[Path]], Reproduction]] = {
    "afs": afs.reproduce_from,
    "gang": gang.reproduce_from,
}
"""The reproductions that play the traces of a folder instead of the shipped ones."""
