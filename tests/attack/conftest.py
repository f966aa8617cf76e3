"""The fixtures of one machine."""

from tests.local.conftest import root

__all__ = ["root"]
