"""What a job of a simulation has of a checkpoint: values, for those who read jobs and those who draw them."""

from enum import StrEnum


class Kind(StrEnum):
    """Whether its checkpoint works."""

    GOOD = "good"
    NONE = "none"
    BROKEN = "broken"
    """It declares one, and none is ever confirmed, nor does a start go on at one."""


KINDS = tuple(kind.value for kind in Kind)
