"""A package, so that its page ends with the last of its tests."""
