"""The kinds of checkpoints of simulated jobs: values, for the modules that read jobs and those that draw them."""

from enum import StrEnum


class Kind(StrEnum):
    """True if its checkpoint works."""

    GOOD = "good"
    NONE = "none"
    BROKEN = "broken"
    """It declares one, and none is ever confirmed, nor does a start go on at one."""


KINDS = tuple(kind.value for kind in Kind)
