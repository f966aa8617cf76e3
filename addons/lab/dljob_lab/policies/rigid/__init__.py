"""Baselines that give each job the GPUs that it requests."""
