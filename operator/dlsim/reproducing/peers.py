"""Stub."""

from dlsim.reproducing.findings import Reproduction
from dlsim.simulating import Watch


def reproduce(watch: Watch | None) -> Reproduction:
    raise NotImplementedError
