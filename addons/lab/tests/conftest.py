"""The command, in a folder with a small trace."""

from tests.ctl.conftest import dljob, folder

__all__ = ["dljob", "folder"]
