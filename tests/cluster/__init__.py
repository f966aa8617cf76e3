"""A package, so that its nodes end with the last of its tests."""
