"""
What a pod of a job needs of a node besides GPUs: room for what it asks, and that it may be there.

A job has one pod on each node that it spans, whatever number of GPUs it has there, so that what a
pod needs is the same on each. Whoever sees the cluster makes one object for all jobs that need the
same: what follows from it is then found out once, for thousands that wait.
"""

from dataclasses import dataclass

from dlcore.placement.amounts import Amounts


@dataclass(frozen=True, slots=True, eq=False)
class Needs:
    """What every pod of a job asks, and where it may be at all. One object for all that are alike."""

    amounts: tuple[tuple[str, int], ...] = ()
    """By resource, in thousandths; what is not counted on a node is there without limit."""
    nodes: frozenset[str] | None = None
    """The nodes that would take it if they had room; ``None``: any."""
    refusals: tuple[tuple[str, int], ...] = ()
    """Why the others would not, for people, and how many of them for that reason."""

    def fits(self, free: Amounts | None) -> bool:
        """Whether there is enough of everything; of what nobody counts there always is."""
        if free is not None:
            # Spelt out, for this is asked for each of hundreds of nodes.
            for name, amount in self.amounts:
                if amount > free.get(name, 0):
                    return False
        return True

    def may_be_on(self, node: str, free: Amounts | None) -> bool:
        """Whether a new pod could be on this node, given what is free there."""
        return (self.nodes is None or node in self.nodes) and self.fits(free)
