"""How often the loop looks, waits and decides."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How often the loop looks and decides. Seconds."""

    period_seconds: float = 15.0
    """A decision is made at least so often, with what was learnt meanwhile."""
    settle_seconds: float = 0.02
    """After a change by a user, so long is waited for others, so that a burst is one decision."""
    longest_settle_seconds: float = 0.2
    """But no longer than that in all."""
    look_seconds: float = 1.0
    """Progress, deadlines and timeouts are looked at so often."""
    warm_seconds: float = 30.0
    """For how long a newcomer's spare interpreters are waited for."""
    rest_share: float = 3.0
    """After each look it rests for so many times as long as the look took of a core; with 3 it never
    takes more than a quarter of one."""
    longest_rest_seconds: float = 0.5
    """But no longer than that, because a look may also take long for what it waits for."""
    most_steps: int = 0
    """Of a decision, so many steps at most are taken before it is looked anew; 0 sets no limit. Where
    each step costs a write to a server, a newcomer so need not wait for thousands of others."""
