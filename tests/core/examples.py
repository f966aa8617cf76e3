"""How many examples hypothesis draws where each of them takes long, or every policy is drawn for."""

from hypothesis import settings

USUAL = 100
"""As many as hypothesis draws by itself; the profile ``thorough`` draws more of everything."""


def few_examples(count: int) -> settings:
    """Draw this number of examples where others are drawn 100 times."""
    return settings(max_examples=count * settings().max_examples // USUAL)
