"""The fixtures of the command, in front of a played ``dljob up`` and of a cluster."""

from tests.ctl.cluster.conftest import ada, as_user, scene
from tests.ctl.conftest import dljob, played, root

__all__ = ["ada", "as_user", "dljob", "played", "root", "scene"]
