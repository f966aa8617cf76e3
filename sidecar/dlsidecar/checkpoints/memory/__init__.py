"""Checkpoints in memory, as a cache of the folder on the disk: the folder, what lies in it, and when it is written out."""
