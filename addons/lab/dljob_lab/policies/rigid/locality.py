"""DRAGON's baseline: gangs in order of arrival, each on the fewest nodes, and never scaled."""

from dataclasses import dataclass
from typing import ClassVar

from dljob.core.checking import Law
from dljob.core.contract import Decision, View
from dljob.core.policies.common import ordering


@dataclass(frozen=True, slots=True)
class Locality:
    """
    Start the first job in order of arrival that fits, all of it on the fewest nodes.

    The "locality-aware scheduler" of DRAGON, section 4.1: "a simplified implementation of DRAGON
    without the feature of auto-scaling", which "acts the same as a greedy packing scheduling
    algorithm". Without scaling, DRAGON is just step 3 of its Figure 5: adapted first
    come, first served, and the packing of a job's tasks onto the least number of nodes.

    Where the paper leaves room: a job gets the number of GPUs that its user requested (the row
    "Num. Workers" of Table 1). With that number and with this packing the policy decides as ``fjf``
    does; it has a name of its own so that the paper's comparison can be asked for by name.
    """

    name: ClassVar[str] = "locality"
    paper: ClassVar[str] = "DRAGON (Lin et al.), 4.1 (baseline)"
    needs: ClassVar[str] = "nothing"
    breaks: ClassVar[frozenset[Law]] = frozenset()

    def allocate(self, view: View) -> Decision:
        return ordering.admit(view, passing=True)
