# What type checkers see of the names that __init__.py loads when they are used.
from dlapi import *  # noqa: F403 - dlapi alone lists the names of the interface
from dljob import training as training
