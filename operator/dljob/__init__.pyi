# What type checkers see of the names that __init__.py loads when they are used.
from dljob import training as training
from dljob.api import *  # noqa: F403 - dljob.api alone lists the names of the interface
