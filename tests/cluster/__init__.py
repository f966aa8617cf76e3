"""A package, so that the nodes of its tests end with the last of them."""
