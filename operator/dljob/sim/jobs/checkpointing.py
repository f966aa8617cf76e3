"""The kinds of checkpoints of simulated jobs: values, for the modules that read jobs and those that draw them."""

from enum import StrEnum


class Kind(StrEnum):
    """The checkpoint of a simulated job works, does not exist, or does not work."""

    GOOD = "good"
    NONE = "none"
    BROKEN = "broken"
    """It declares one, and none is ever confirmed, nor does a start go on at one."""


KINDS = tuple(kind.value for kind in Kind)
