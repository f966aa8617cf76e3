"""The agent inside the training container: it starts, stops and re-pins the training processes."""

from __future__ import annotations

__version__ = "0.1.0"

EXIT_UNAVAILABLE = 69
"""The code of sysexits.h for a missing service: the SideCar cannot begin."""
