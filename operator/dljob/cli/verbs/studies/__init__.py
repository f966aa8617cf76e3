"""Verbs for studies: simulations, comparisons, bounds, reproductions and the demonstration."""
