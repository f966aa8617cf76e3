"""DRAGON: jobs that waited long take GPUs from those that can give some, and free GPUs go to running jobs."""

from dljob.core.policies.papers.dragon.policy import Dragon

__all__ = ["Dragon"]
