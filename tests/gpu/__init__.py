"""
Tests on a machine with a real GPU, by `make test-gpu`; elsewhere they are rehearsed with stand-ins.
"""

import sys
from pathlib import Path

# `python -m tests.gpu` knows the root alone, and the driver of SideCars stands in benchmarks.
sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))
