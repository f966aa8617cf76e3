"""DRAGON: jobs that waited long take GPUs from those that can give some, and free GPUs go to running jobs."""

from dljob_lab.policies.elastic.dragon.policy import Dragon

__all__ = ["Dragon"]
