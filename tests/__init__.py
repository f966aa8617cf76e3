"""A package, so that the folder ``tests`` of an add-on, which is on the path too, is no part of it."""
