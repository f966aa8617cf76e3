"""
Ports of pods with ``hostNetwork``, which share the ports of their node.

Each job has a block of ports, the same on all nodes: for its SideCars, their health, and the rendezvous of its
processes. An annotation of its pods names the block, so that the next leader knows it.

Pure.
"""

import re
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from dljob.core.documents.rules.podrules import TRAINER
from dljob.kube.documents import Json
from dljob_wire.problems import Problem, WrongDocument

BLOCK: Final = 100
OWN: Final = 2
"""The number of ports of the SideCar and its health, which come first in a block."""
HOST_PORTS: Final = "dljob.io/host-ports"
"""The annotation of a pod that names the first port of its block."""
LEAST, MOST = 1024, 65535
_PORT: Final = re.compile(r"[0-9]{4,5}")

_NO_HOST_PORTS: Final = Problem(
    "spec.template.spec.hostNetwork",
    "true",
    "pods on the network of their node need ports of it, and this operator has none for jobs",
    "remove hostNetwork, or have an administrator set pods.hostPorts of the operator, such as 20000-29999",
)


class PortRange(NamedTuple):
    """The ports of each node that an administrator reserves for jobs."""

    first: int
    last: int

    @classmethod
    def parse(cls, text: str) -> "PortRange":
        """Parse ``FIRST-LAST``; raises ValueError if that has no room for a job."""
        first, dash, last = text.partition("-")
        if not (dash and first.isdecimal() and last.isdecimal()):
            raise ValueError(f"{text!r} is no range of ports; write it as 20000-29999")
        ports = cls(int(first), int(last))
        if not (ports.first >= LEAST and ports.last <= MOST and ports.blocks):
            raise ValueError(
                f"{text} has no room for a job, which takes {BLOCK} ports between {LEAST} and {MOST}"
            )
        return ports

    @property
    def blocks(self) -> range:
        """The first ports of all blocks."""
        return range(self.first, self.last - BLOCK + 2, BLOCK)


def is_on_host(spec: Json) -> bool:
    """True if a pod uses the network of its node."""
    return bool(spec.get("hostNetwork"))


def first_port(pod: Json) -> int:
    """Return the first port of a pod's block; 0 without hostNetwork."""
    marked = str((pod["metadata"].get("annotations") or {}).get(HOST_PORTS, ""))
    # Users may write the annotation, even with more digits than int() accepts.
    first = int(marked) if _PORT.fullmatch(marked) and is_on_host(pod.get("spec") or {}) else 0
    return first if LEAST <= first <= MOST - BLOCK + 1 else 0


def choose_block(uid: str, pods: Iterable[Json], *, ports: PortRange) -> int:
    """Return the first port of the job's block, or of a free block; 0 if none is free."""
    taken: dict[int, str] = {}
    for pod in pods:
        first = first_port(pod)
        if first and (pod.get("status") or {}).get("phase") not in ("Succeeded", "Failed"):
            owners = pod["metadata"].get("ownerReferences") or ()
            taken[first] = next((str(owner.get("uid", "")) for owner in owners), "")
    own = (first for first, owner in taken.items() if owner == uid)
    # The range may have changed since other jobs got their blocks, so blocks can overlap.
    free = (one for one in ports.blocks if all(abs(one - other) >= BLOCK for other in taken))
    return next(own, next(free, 0))


def take_ports(pod: Any, ports: str, *, first: int) -> int:
    """
    Add the ports of a pod with hostNetwork to it, and return the first; ``ports`` is the range for all jobs.

    The SideCar's are host ports of the container, so that kube-scheduler keeps other pods with these ports away. A
    draft (``first`` is 0) has none, so that it fits on every node. Raises
    :class:`~dljob_wire.problems.WrongDocument` if the range is empty.
    """
    if not ports:
        raise WrongDocument((_NO_HOST_PORTS,))
    if not first:
        return PortRange.parse(ports).first
    pod["metadata"]["annotations"][HOST_PORTS] = str(first)
    for container in pod["spec"]["containers"]:
        if container["name"] == TRAINER:
            known = container.get("ports") or ()
            ours = [{"containerPort": port, "hostPort": port} for port in (first, first + 1)]
            container["ports"] = [*known, *ours]
    return first


def meeting_port(first: int, generation: int, *, processes: int) -> int:
    """Return the first port of a start's rendezvous, never that of the last start, whose processes
    may linger.
    """
    room = BLOCK - OWN
    step = min(max(processes, 1), room)
    return first + OWN + generation * step % (room - step + 1)
