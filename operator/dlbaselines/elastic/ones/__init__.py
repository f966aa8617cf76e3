"""ONES: an evolutionary search over which job each GPU serves, with elastic batch sizes."""

from dlbaselines.elastic.ones.policy import Ones

__all__ = ["Ones"]
