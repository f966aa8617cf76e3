"""First in, first out, with jobs that fit passing those that do not."""

from dataclasses import dataclass
from typing import ClassVar

from dljob.core.checking import Law
from dljob.core.contract import Decision, View
from dljob.core.policies.common import ordering


@dataclass(frozen=True, slots=True)
class Fjf:
    """
    The first job that fits starts: in order of arrival, it passes over jobs that do not fit.

    FIFO without its blocking head, and so with the danger that small jobs keep a large one waiting
    for ever. It stops or reshapes no job.
    """

    name: ClassVar[str] = "fjf"
    paper: ClassVar[str] = "first job first: FIFO with skipping"
    needs: ClassVar[str] = "nothing"
    breaks: ClassVar[frozenset[Law]] = frozenset()

    def allocate(self, view: View) -> Decision:
        return ordering.admit(view, passing=True)
