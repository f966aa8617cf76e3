"""Checkpoints in memory, as a cache of the folder on disk, and their way to the disk."""
