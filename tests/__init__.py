"""A package, so that the folder ``tests`` of an add-on, which is on the path too, is no part of it."""

import sys
from pathlib import Path

# `python -m tests.chaos` knows the root alone, and the driver of SideCars stands in benchmarks.
sys.path.append(str(Path(__file__).resolve().parents[1] / "benchmarks"))
