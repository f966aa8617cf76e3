"""
What AFS makes of SRTF and SRSF where jobs are elastic: what they leave idle goes to efficiency.

Used by ``srtf-e`` and ``srsf-e``, which differ in the order of the jobs.
"""

from dlcore.contract import Decision, View
from dlcore.policies.common.ordering import BEHIND, Line, count_requested
from dlcore.policies.elastic import places
from dlcore.policies.elastic.sharing import Contender, Sharing, Terms


def share(view: View, line: Line, *, packing: bool) -> Decision:
    """Give jobs in order what they request, then give the rest to the jobs that gain most from it."""
    sharing = Sharing(view, packing=packing)
    sharing.admit(line, count_requested)
    sharing.admit(line)
    sharing.hand_out(Terms(_arrival, saturation=_price, band=0.0))
    sharing.regulate()
    return places.settle(sharing, line, wait=BEHIND)


def _price(contender: Contender) -> float:
    """How many more GPUs would bring as much as the job's first one."""
    curve = contender.curve
    return curve.speeds[0] / curve.options[0] / curve.gain(contender.count)


def _arrival(contender: Contender) -> float:
    return float(contender.state.order)
