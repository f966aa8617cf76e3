"""
The course of a job apart from its true speed: the warm-up of each start, crashes, and silence.

:mod:`dljob.sim.jobs.workloads` attaches one to a job; :mod:`dljob.sim.engine.training` plays it.
"""

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """The default is a job that trains at its true speed from its first step to its end, and reports it."""

    warm_up_s: float = 0.0
    """How long each start trains more slowly."""
    warm_up_pace: float = 1.0
    """The speed of that time, as a share of the true one."""
    crashes_after_s: float = math.inf
    """How long each start trains before it crashes."""
    is_mute: bool = False
    """True if it reports no progress."""


STEADY = Course()
