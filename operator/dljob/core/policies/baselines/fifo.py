"""First in, first out."""

from dataclasses import dataclass
from typing import ClassVar

from dljob.core.checking import Law
from dljob.core.contract import Decision, View
from dljob.core.policies.common import ordering


@dataclass(frozen=True, slots=True)
class Fifo:
    """
    Jobs start in order of arrival with the GPUs they request; the first that does not fit blocks.

    The plainest baseline (AFS, section 5.1; Tiresias, section 5). It stops or reshapes no job. The
    texts count GPUs only; here a job starts when a place is found for it, on the fewest nodes of
    the type it is fastest on.
    """

    name: ClassVar[str] = "fifo"
    paper: ClassVar[str] = "the usual baseline: Tiresias (NSDI '19) 5"
    needs: ClassVar[str] = "nothing"
    breaks: ClassVar[frozenset[Law]] = frozenset()

    def allocate(self, view: View) -> Decision:
        return ordering.admit(view, passing=False)
