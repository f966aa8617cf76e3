"""
The laws of a plan. Every plan of every policy passes through here, simulated or real.

The check knows nothing of how a plan was made: it replays the steps over the snapshot and refuses
the first thing that must never happen. A plan that breaks a law is a bug of ours or of a policy,
never of the user, so it ends the cycle with :class:`BrokenLaw` and nothing is carried out.

A baseline whose point is to show what happens without a law declares it in its ``breaks``.
"""

from dljob.core.checking.laws import BrokenLaw, Law
from dljob.core.checking.replaying import check

__all__ = ["BrokenLaw", "Law", "check"]
