"""
The default policy: a price for every job, and the shares that are worth most at these prices.

:mod:`.policy` has the steps of one decision in their order; the other modules are one step each:
:mod:`.curves` (how a job scales), :mod:`.bids` (what each job needs yet), :mod:`.lengths` (how long
jobs of unknown length take), :mod:`.pricing`, :mod:`.choosing` (how many GPUs of which type) and :mod:`.placing` (on which
nodes; :mod:`.sites` records them). :mod:`.memory` is the state from decision to decision. ``docs/foresight.md`` explains
the whole.
"""

from dljob.core.policies.foresight.policy import Foresight

__all__ = ["Foresight"]
