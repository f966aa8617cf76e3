"""ONES: an evolutionary search over which job each GPU serves, with elastic batch sizes."""

from dlcore.policies.papers.ones.policy import Ones

__all__ = ["Ones"]
