"""ONES: an evolutionary search over which job each GPU serves, with elastic batch sizes."""

from dljob_lab.policies.elastic.ones.policy import Ones

__all__ = ["Ones"]
