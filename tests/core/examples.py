"""The number of examples that hypothesis draws in slow tests."""

from hypothesis import settings

USUAL = 100
"""The default of hypothesis; the profile ``thorough`` draws more."""


def few_examples(count: int) -> settings:
    """Draw this number of examples instead of 100."""
    return settings(max_examples=count * settings().max_examples // USUAL)
