"""
The needs of a job's pod on a node in addition to GPUs: room for its requests, and the permission to run there.

A job has one pod on each node that it spans, for any number of GPUs there, so that each pod needs
the same. The platform makes one object for all jobs with the same needs, so that the conclusions
from it are computed once for thousands of waiting jobs.
"""

from dataclasses import dataclass

from dljob.core.placement.amounts import Amounts


@dataclass(frozen=True, slots=True, eq=False)
class Needs:
    """The requests of every pod of a job, and the nodes where it may run. One object for all that are alike."""

    amounts: tuple[tuple[str, int], ...] = ()
    """By resource, in thousandths; a resource that a node does not count is unlimited there."""
    nodes: frozenset[str] | None = None
    """The nodes that would take it if they had room; ``None``: any."""
    refusals: tuple[tuple[str, int], ...] = ()
    """Why the others would not, for people, and how many of them for that reason."""

    def fits(self, free: Amounts | None) -> bool:
        """Return whether there is enough of every resource; a resource that is not counted always
        suffices."""
        if free is not None:
            # Without a helper, because this runs for each of hundreds of nodes.
            for name, amount in self.amounts:
                if amount > free.get(name, 0):
                    return False
        return True

    def may_be_on(self, node: str, free: Amounts | None) -> bool:
        """Return whether a new pod could be on this node, given what is free there."""
        return (self.nodes is None or node in self.nodes) and self.fits(free)
