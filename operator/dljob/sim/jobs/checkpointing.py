"""The kinds of checkpoints of simulated jobs: values, for the modules that read jobs and those that draw them."""

from enum import StrEnum


class Kind(StrEnum):
    """The checkpoint of a simulated job works, does not exist, or does not work."""

    GOOD = "good"
    NONE = "none"
    BROKEN = "broken"
    """The job declares a checkpoint, but none is ever confirmed, and no start resumes from one."""


KINDS = tuple(kind.value for kind in Kind)
