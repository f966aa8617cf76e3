"""Facts that both sides share about how a job saves itself: standard library only, as all of dlwire."""

from __future__ import annotations

ENDING_SIGNALS = frozenset({"SIGTERM", "SIGINT", "SIGQUIT", "SIGHUP", "SIGKILL"})
"""Signals that ask a program to end, by convention also one that saves itself on them."""


def goes_on_after_saving(*, signal: str, confirm: str, has_command: bool) -> bool:
    """Whether a training that is asked in this way is expected to save itself and to train on."""
    ends = confirm == "exit" and not has_command
    return not ends and signal not in ENDING_SIGNALS
