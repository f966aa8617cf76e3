"""The notices by which the three large clouds announce the end of a machine, from their metadata services."""
