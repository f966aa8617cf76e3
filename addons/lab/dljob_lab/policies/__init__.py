"""
The policies of papers beyond those of the product, and baselines.

Each is an entry point in ``pyproject.toml``, by which simulations and controllers find it. :mod:`.rigid` has those
that give each job the GPUs that it requests, :mod:`.elastic` those that choose how many, and :mod:`.common` what
several of them share.
"""
