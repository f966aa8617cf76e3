"""Nodes: which are ours, what is free on them, and the placeholders that hold GPUs."""
